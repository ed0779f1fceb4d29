"""Which replays are scheduled, what is cached, and how many threads may be asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchfake import (
    deferred_init,
    is_deferred,
    materialize_module,
    materialize_tensor,
)
from torchfake._replay import replay


def test_small_models_are_not_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "build_task_graph", lambda _: 1 / 0)
    monkeypatch.setattr(replay, "MAX_SEQUENTIAL_BYTES", 10_000)
    materialize_module(deferred_init(nn.Linear, 10, 10))
    with pytest.raises(ZeroDivisionError):
        materialize_module(deferred_init(nn.Linear, 100, 100))


def test_reads_in_a_loop_are_not_computed_each_time() -> None:
    """Each read replays what was written since the one before."""

    def build() -> torch.Tensor:
        table = torch.zeros(1000)
        for i in range(1, 200):
            table[i] = table[i - 1] + 1
            if table[i] > 1e9:
                break
        return table

    executed: list[Any] = []
    original = replay.execute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "execute", lambda *args: (executed.append(1), original(*args))[1])
        deferred = deferred_init(build)
    assert len(executed) < 200 * 10
    assert torch.equal(materialize_tensor(deferred), build())


@pytest.mark.parametrize("threads", [0, -1, "2", 1.5, True])
def test_what_is_no_number_of_threads_is_refused(threads: Any) -> None:
    module = deferred_init(nn.Linear, 3, 4)
    with pytest.raises(ValueError, match="give a number of threads, 1 or more"):
        materialize_module(module, threads=threads)
    assert is_deferred(module)
