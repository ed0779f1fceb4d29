"""Every fact on which an outcome depends is in the key or a guard, or the call is not cached."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests._cache.conftest import assert_same_again, unknown
from torchfake import fake_mode, is_fake

# Numbers, dtypes and devices.

NUMBERS = (1, 1.0, True, 1 + 0j, 0, 0.0, False)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.complex64])
def test_equal_numbers_of_different_types(dtype: torch.dtype) -> None:
    """1, 1.0 and True are equal and have equal hashes, but different results."""
    operations = (torch.add, torch.mul, torch.eq)
    assert_same_again(
        lambda: [op(unknown(3, dtype=dtype), n) for op in operations for n in NUMBERS]
    )
    assert_same_again(lambda: [torch.full((2,), n) for n in NUMBERS])


def test_alpha_is_checked_by_its_type() -> None:
    with fake_mode():
        x = unknown(3, dtype=torch.int64)
        torch.add(x, x, alpha=2)
        with pytest.raises(RuntimeError, match="alpha") as caught:
            torch.add(x, x, alpha=2.5)
    assert caught.value.__context__ is None


def test_default_dtype() -> None:
    """The default dtype decides the dtype of factories without one, and of integer division."""

    def program() -> list[Tensor]:
        x = unknown(3, dtype=torch.int64)
        made = []
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
            torch.set_default_dtype(dtype)
            made += [torch.empty(2), torch.ones(2), x / 2, x.sqrt(), x.float().mul(2)]
        return made

    try:
        assert_same_again(program)
    finally:
        torch.set_default_dtype(torch.float32)


def test_current_device() -> None:
    for _ in range(3):
        with fake_mode(fake_cuda=3):
            for index in (0, 2, 1):
                torch.cuda.set_device(index)
                assert torch.empty(2, device="cuda").device == torch.device("cuda", index)
                assert torch.ones(2).to("cuda").device == torch.device("cuda", index)
        with fake_mode(fake_cuda=1), pytest.raises((RuntimeError, AssertionError)):
            torch.empty(2, device="cuda:2")


def test_each_device_has_recipes_of_its_own() -> None:
    def devices() -> list[torch.device]:
        with fake_mode(fake_cuda=2):
            made = [torch.empty(2, device=d) for d in ("cpu", "cuda:0", "cuda:1")]
            return [(t + t).device for t in made]

    assert devices() == devices() == [torch.device(d) for d in ("cpu", "cuda:0", "cuda:1")]


def test_masks_are_counted_each_time() -> None:
    def program() -> list[Tensor]:
        x, made = torch.arange(6.0), []
        for bound in (1, 4, 2, 6):
            mask = torch.arange(6) < bound
            made += [x[mask], torch.masked_select(x, mask), torch.nonzero(mask)]
        return made

    assert_same_again(program)


def test_calls_with_a_generator_are_not_cached() -> None:
    """A key would keep the generator alive, and would not distinguish its states."""
    with fake_mode():
        generator = torch.Generator().manual_seed(1)
        first = torch.randint(0, 1_000_000, (4,), generator=generator).tolist()
        second = torch.randint(0, 1_000_000, (4,), generator=generator).tolist()
    assert first != second
    assert not [o for o in gc.get_referrers(generator) if isinstance(o, tuple)]


def test_each_hit_draws_anew() -> None:
    with fake_mode():
        drawn = [tuple(torch.randint(0, 1_000_000, (4,)).tolist()) for _ in range(5)]
    assert len(set(drawn)) == 5


# Modes, and tensor subclasses of other libraries.


def test_inference_mode() -> None:
    def program() -> list[Tensor]:
        normal = unknown(4, 4)
        with torch.inference_mode():
            inner = unknown(4, 4)
            made = [t.view(16) for t in (normal, inner)] + [t + t for t in (normal, inner)]
            made += [*normal.split(2), *inner.split(2), normal.detach()]
        return made

    assert_same_again(program)


def test_autocast() -> None:
    def program() -> list[Tensor]:
        x, w = unknown(4, 4), nn.Parameter(unknown(4, 4))
        made = [x @ w]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made += [x @ w, F.linear(x, w), torch.softmax(x @ w, -1)]
            with torch.autocast("cpu", enabled=False):
                made.append(x @ w)
        return [*made, x @ w]

    assert_same_again(program)


def test_autocast_around_and_across_modes() -> None:
    """Autocast applies in a mode whether it is switched on around the mode or inside it."""
    with torch.autocast("cpu"), fake_mode():
        assert (unknown(2, 2) @ unknown(2, 2)).dtype == torch.bfloat16
        with fake_mode():
            assert (unknown(2, 2) @ unknown(2, 2)).dtype == torch.bfloat16
    with fake_mode():
        x = unknown(2, 2)
        torch.set_autocast_enabled("cpu", True)
        inside = x @ x
    after = x @ x
    torch.set_autocast_enabled("cpu", False)
    assert [t.dtype for t in (inside, after, x @ x)] == [
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    ]


def test_other_classes_are_dispatched_first() -> None:
    class Foreign(Tensor):
        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return foreign

    foreign = Tensor._make_wrapper_subclass(Foreign, (3,))
    with fake_mode():
        x = unknown(3)
        for _ in range(3):
            assert is_fake(x + x)
            assert torch.ops.aten.add.Tensor(x, foreign) is foreign


def test_custom_operators_run_each_time() -> None:
    rows = iter(range(2, 9))

    @torch.library.custom_op("torchfake_test::rows", mutates_args=())
    def some_rows(x: Tensor) -> Tensor:
        return x.clone()

    @some_rows.register_fake
    def _(x: Tensor) -> Tensor:
        return x.new_empty(next(rows))

    with fake_mode():
        assert [len(some_rows(unknown(3))) for _ in range(3)] == [2, 3, 4]


def test_errors_are_raised_each_time() -> None:
    with fake_mode():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="must match the size"):
                unknown(3) + unknown(4)
            with pytest.raises(RuntimeError, match="std >= 0"):
                unknown(3).normal_(0.0, -1.0)
