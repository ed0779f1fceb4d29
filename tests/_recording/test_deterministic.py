"""``torch.use_deterministic_algorithms``: empty memory is filled as in eager mode."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle import bits
from torchfake import deferred_init, deferred_mode, errors, fake_mode, materialize_tensor
from torchfake._torch import backends

DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
]  # fmt: skip

EMPTY: dict[str, Callable[[torch.dtype], Any]] = {
    "empty": lambda d: torch.empty(3, 2, dtype=d),
    "no elements": lambda d: torch.empty(0, 2, dtype=d),
    "no dims": lambda d: torch.empty((), dtype=d),
    "channels_last": lambda d: torch.empty(1, 2, 3, 4, dtype=d, memory_format=torch.channels_last),
    "empty_like": lambda d: torch.empty_like(torch.zeros(2, 3, dtype=d).t()),
    "new_empty": lambda d: torch.zeros(1).new_empty(3, dtype=d),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), dtype=d),
    "new_empty_strided": lambda d: torch.zeros(1, dtype=d).new_empty_strided((2, 3), (1, 2)),
    "empty_permuted": lambda d: torch.empty_permuted((2, 3), (1, 0), dtype=d),
    "resize_": lambda d: torch.zeros(2, dtype=d).resize_(5),
    "resize_, larger than both": lambda d: torch.zeros(4, dtype=d)[1:].resize_(2, 3),
    "resize_, smaller": lambda d: torch.zeros(4, dtype=d).resize_(2),
    "resize_as_": lambda d: torch.zeros(2, dtype=d).resize_as_(torch.zeros(3, 2, dtype=d)),
    "written in part": lambda d: written(torch.empty(4, dtype=d)),
    "view": lambda d: torch.empty(4, 2, dtype=d)[1],
    "out": lambda d: torch.ones(3, dtype=d, out=torch.empty(0, dtype=d)),
    "to_empty": lambda d: nn.Buffer(torch.zeros(2, dtype=d)).new_empty(3),
}


def written(tensor: torch.Tensor) -> torch.Tensor:
    tensor[1] = 1
    return tensor


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    options = backends.deterministic_options()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.utils.deterministic.fill_uninitialized_memory = fills
    with backends.deterministic(options):
        pass
    torch.use_deterministic_algorithms(options is not None)


def described(tensor: torch.Tensor) -> Any:
    return bits(tensor), tensor.dtype, tensor.stride(), tensor.untyped_storage().nbytes()


@pytest.mark.parametrize("name", EMPTY)
def test_empty_memory_is_replayed_as_eager_fills_it(name: str) -> None:
    for dtype in DTYPES:
        torch.use_deterministic_algorithms(True)
        expected = EMPTY[name](dtype)
        with deferred_mode():
            inside = EMPTY[name](dtype)
        torch.use_deterministic_algorithms(False)  # what counts is when it was recorded
        assert described(materialize_tensor(inside)) == described(expected), dtype


def test_empty_memory_has_a_known_value_in_a_fake_mode() -> None:
    for dtype, on in itertools.product((torch.float32, torch.int64, torch.bool), (False, True) * 2):
        torch.use_deterministic_algorithms(on)
        with fake_mode():
            fake = torch.empty(3, dtype=dtype)
            like = torch.empty_like(fake)
        if not on and dtype.is_floating_point:
            with pytest.raises(errors.UnknownValueError):
                fake.tolist()
            continue
        expected = torch.empty(3, dtype=dtype) if on else torch.zeros(3, dtype=dtype)
        assert repr(fake.tolist()) == repr(like.tolist()) == repr(expected.tolist())


def test_memory_is_not_filled_where_the_user_says_so() -> None:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    with deferred_mode():
        made = torch.empty(3)
    with fake_mode():
        assert torch.empty(3, dtype=torch.int64).tolist() == [0, 0, 0]
    assert made._fake_storage.deferred.contents.op is None  # type: ignore[attr-defined]


class Pooled(nn.Module):
    """Its constructor runs an operator that has no deterministic implementation."""

    def __init__(self) -> None:
        super().__init__()
        values, indices = torch.nn.functional.max_pool1d(
            torch.rand(1, 1, 8), 2, return_indices=True
        )
        self.register_buffer("kept", torch.nn.functional.max_unpool1d(values, indices, 2))


@pytest.mark.parametrize("when_replayed", [False, True])
@pytest.mark.parametrize("when_recorded", [None, "warn"])
def test_operators_run_as_they_were_recorded(when_recorded: Any, when_replayed: bool) -> None:
    torch.use_deterministic_algorithms(when_recorded is not None, warn_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        expected = Pooled()
        torch.manual_seed(0)
        module = deferred_init(Pooled)
        torch.use_deterministic_algorithms(when_replayed)
        assert bits(materialize_tensor(module.kept)) == bits(expected.kept)  # type: ignore[arg-type]
    assert torch.are_deterministic_algorithms_enabled() is when_replayed


def put(accumulate: bool) -> Callable[[], Any]:
    return lambda: torch.zeros(3).put_(torch.tensor([1]), torch.ones(1), accumulate)


PROGRAMS: dict[str, Callable[[], Any]] = {
    "max_unpool": lambda: Pooled().kept,
    "put_": put(accumulate=False),
    "put_, accumulated": put(accumulate=True),
    "put": lambda: torch.zeros(3).put(torch.tensor([1]), torch.ones(1)),
    "index_put_": lambda: torch.zeros(3).index_put_((torch.tensor([1]),), torch.ones(1), True),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("warn_only", [False, True])
def test_what_eager_refuses_is_refused_at_once(name: str, mode: Any, warn_only: bool) -> None:
    def outcome() -> Any:
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            try:
                PROGRAMS[name]()
            except RuntimeError as error:
                return str(error)
        return {str(w.message) for w in shown if "deterministic" in str(w.message)}

    with mode():
        PROGRAMS[name]()  # an outcome that is cached is none
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    expected = outcome()
    with mode():
        assert outcome() == expected
