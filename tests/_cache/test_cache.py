"""The tables of the cache: no tensor is kept alive; the size limit, threads, and the switches."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests._cache.conftest import unknown
from torchfake import fake_mode
from torchfake._cache import cache


def test_no_tensor_is_kept_alive() -> None:
    with fake_mode():
        x, y = unknown(3), torch.ones(3)
        alive = [weakref.ref(t._fake_storage) for t in (x, y, x + y, x.view(3), y.add_(x))]
        del x, y
    gc.collect()
    assert [a() for a in alive] == [None] * len(alive)


def test_the_number_of_recipes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_RECIPES", 50)
    with fake_mode():
        for length in range(200):
            assert (unknown(length) + 1).shape == (length,)
            assert cache.count() <= 50
    tables = [table for by_signature in cache.tables.values() for table in by_signature.values()]
    held = sum(len(table.recipes or table.checked) for table in tables)
    assert held == cache.count()


def test_modes_and_threads_share_the_cache(forbid_kernels: Callable[[], None]) -> None:
    with fake_mode():
        unknown(3) + unknown(3)
    forbid_kernels()
    made: list[Tensor] = []

    def on_thread() -> None:
        with fake_mode():
            made.append(unknown(3) + unknown(3))

    thread = threading.Thread(target=on_thread)
    thread.start()
    thread.join()
    assert made[0].shape == (3,)


def test_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are correct while other threads fill and drop the tables."""
    monkeypatch.setattr(cache, "MAX_RECIPES", 40)
    wrong: list[Any] = []

    def on_thread(seed: int) -> None:
        with fake_mode():
            for i in range(300):
                rows, columns = 1 + (i * seed) % 7, 1 + i % 5
                x = unknown(rows, columns)
                made = (x @ x.t()).relu().sum(0), torch.cat([x, x]), x.view(-1)
                shapes = [tuple(t.shape) for t in made]
                if shapes != [(rows,), (2 * rows, columns), (rows * columns,)]:
                    wrong.append((rows, columns, shapes))

    threads = [threading.Thread(target=on_thread, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# The switches.

PROGRAM = """
import torch
from torchfake import fake_mode
from torchfake._cache import cache
"""


def _with_environment(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TORCHFAKE_CACHE": "off"}, "TORCHFAKE_CACHE is 0 or 1, not 'off'"),
        ({"TORCHFAKE_CHECK_CACHE": "yes"}, "TORCHFAKE_CHECK_CACHE is 0 or 1, not 'yes'"),
        ({"TORCHFAKE_CACHE": "0", "TORCHFAKE_CHECK_CACHE": "1"}, "nothing to check"),
    ],
)
def test_invalid_switches_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        cache._Settings()


COUNT = """
with fake_mode():
    x = torch.empty(3)
    for _ in range(3):
        y = x + x
import sys
sys.stdout.write(f"{cache.count()} {cache.settings.checking} {tuple(y.shape)}")
"""


def test_the_cache_can_be_turned_off() -> None:
    off = _with_environment(COUNT, TORCHFAKE_CACHE="0", TORCHFAKE_CHECK_CACHE="0")
    assert off.startswith("0 ")


def test_the_cache_can_be_checked() -> None:
    assert _with_environment(COUNT, TORCHFAKE_CHECK_CACHE="1", TORCHFAKE_CACHE="1") == "2 True (3,)"
    assert (
        _with_environment(COUNT, TORCHFAKE_CHECK_CACHE="0", TORCHFAKE_CACHE="1") == "2 False (3,)"
    )


def test_answers_about_storages_are_not_shared() -> None:
    """Operators that depend on the size of a storage distinguish views of equal metadata."""
    with fake_mode():
        tangent, base = torch.ones(2), torch.ones(6)
        ask = torch.ops.aten._has_same_storage_numel.default
        assert ask(tangent, torch.zeros(2))
        assert not ask(tangent, base[:2])
        like = torch.ops.aten._new_zeros_with_same_feature_meta.default
        assert like(tangent, torch.zeros(2)).untyped_storage().nbytes() == 8
        assert like(tangent, base[:2]).untyped_storage().nbytes() == 24
