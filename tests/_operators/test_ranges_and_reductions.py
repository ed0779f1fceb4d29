"""Ranges, reductions and casts whose metadata torch's own meta kernels get wrong: as in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

from torchfake import deferred_mode, fake_mode, materialize_tensor

Program = Callable[[], torch.Tensor]

BOUNDS: tuple[Callable[[], Any], ...] = (
    lambda: 2.5,
    lambda: 3 + 1j,
    lambda: torch.tensor(2),
    lambda: torch.tensor(1.5, dtype=torch.float64),
    lambda: torch.tensor(1 + 2j),
    lambda: torch.ones(2),
)
STEPS = ((1, 5, 0.7), (5, 1, -0.7), (-5.5, 5.5, 1), (0, 4, 2), (1, 5, -1))
LAYOUTS = (
    ((1, 3), (4, 5), 1), ((2, 3, 1), (6, 1, 15), 0), ((0, 3), (1, 7), 0), ((2, 3), (1, 2), 0),
    ((0,), (4,), 0),
)  # fmt: skip
UNARY = (
    "sqrt", "sigmoid", "erf", "reciprocal", "logit", "angle", "square", "neg", "isnan", "isinf",
    "isfinite",
)  # fmt: skip


def spaces() -> Iterator[tuple[str, Program]]:
    for function, dtype in itertools.product(
        (torch.linspace, torch.logspace), (None, torch.float32, torch.complex64)
    ):
        for i, j in itertools.product(range(len(BOUNDS)), repeat=2):

            def program(
                function: Any = function, i: int = i, j: int = j, dtype: Any = dtype
            ) -> Any:
                return function(BOUNDS[i](), BOUNDS[j](), 3, dtype=dtype)

            yield f"{function.__name__} {i} {j} {dtype}", program


def ranges() -> Iterator[tuple[str, Program]]:
    for dtype, step in itertools.product(
        (None, torch.int8, torch.int32, torch.int64, torch.float16), STEPS
    ):
        yield (
            f"arange {dtype} {step}",
            lambda dtype=dtype, step=step: torch.arange(*step, dtype=dtype),
        )  # type: ignore[misc]


def reductions() -> Iterator[tuple[str, Program]]:
    for name, make, dim, keepdim in itertools.product(
        ("nansum", "nanmean", "logsumexp", "sum"),
        (lambda: torch.ones(4, 6), lambda: torch.randn(70, 60), lambda: torch.ones(0, 3)),
        ([], None, [0]),
        (False, True),
    ):
        if dim is not None or name != "logsumexp":

            def program(
                name: str = name, make: Any = make, dim: Any = dim, keepdim: bool = keepdim
            ) -> Any:
                return getattr(torch, name)(make(), dim=dim, keepdim=keepdim)

            yield f"{name} {tuple(make().shape)} {dim} {keepdim}", program


def casts() -> Iterator[tuple[str, Program]]:
    dtypes = torch.uint8, torch.bool, torch.int64, torch.float32, torch.complex64
    for name, dtype, layout in itertools.product(UNARY, dtypes, LAYOUTS):

        def program(name: str = name, dtype: Any = dtype, layout: Any = layout) -> Any:
            return getattr(torch, name)(torch.arange(60).to(dtype).as_strided(*layout))

        yield f"{name} {dtype} {layout[:2]}", program
    for layout, given in itertools.product(LAYOUTS, ((1,), (1, 0))):
        yield (
            f"roll {layout[:2]} {given}",
            lambda layout=layout, given=given: torch.arange(60.0).as_strided(*layout).roll(*given),
        )  # type: ignore[misc]


OTHERS: dict[str, Program] = {
    "isin of a number": lambda: torch.isin(1, torch.arange(3)),
    "isin of a number, unknown": lambda: torch.isin(1, torch.randint(5, (300_000,))),
    "nan_to_num_ of complex": lambda: torch.tensor([complex("nan+1j"), 1]).nan_to_num_(0.5, 2.0),
    "arange into integers": lambda: torch.arange(1, 5, 0.7, out=torch.empty(0, dtype=torch.int32)),
}
PROGRAMS = {**dict(spaces()), **dict(ranges()), **dict(reductions()), **dict(casts()), **OTHERS}


def outcome(program: Program) -> Any:
    """The metadata of a result; None if there is an error."""
    try:
        result = program()
    except (RuntimeError, IndexError, ValueError):
        return None
    return result.dtype, result.shape, result.stride()


@pytest.mark.parametrize("name", PROGRAMS)
def test_metadata_and_values_equal_eager(name: str) -> None:
    program = PROGRAMS[name]
    torch.manual_seed(0)
    expected = outcome(program)
    with fake_mode():
        assert outcome(program) == expected
    with deferred_mode():
        assert outcome(program) == expected
    if expected is not None:
        torch.manual_seed(0)
        eager = program()
        torch.manual_seed(0)
        with deferred_mode():
            deferred = program()
        computed = materialize_tensor(deferred)
        assert torch.equal(computed, eager) or torch.equal(computed.isnan(), eager.isnan())


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_shuffle_of_channels_is_a_copy(groups: int, memory_format: torch.memory_format) -> None:
    def shuffled() -> tuple[torch.Tensor, torch.Tensor]:
        given = torch.arange(72.0).view(2, 4, 3, 3).to(memory_format=memory_format)
        result = functional.native_channel_shuffle(given, groups)
        assert not result._is_view()
        result.zero_()
        return given, result

    eager = shuffled()
    with fake_mode():
        fakes = shuffled()
        assert [fake.tolist() for fake in fakes] == [tensor.tolist() for tensor in eager]
    with deferred_mode():
        deferred = shuffled()
    for tensor, fake, late in zip(eager, fakes, deferred, strict=True):
        assert tensor.stride() == fake.stride() == late.stride()
        assert torch.equal(materialize_tensor(late), tensor)


def test_a_dtype_is_refused_after_other_errors() -> None:
    """Calls that are refused for their dims say nothing about the dtype of a later one."""
    with deferred_mode():
        integers = torch.ones(4, 6, dtype=torch.int64)
        for _ in range(6):
            with pytest.raises(RuntimeError, match="dim"):
                torch.std(integers, dim=[0, 0])
        with pytest.raises(RuntimeError, match="only support floating"):
            torch.std(integers, dim=-1)


def test_set_counts_from_where_its_source_begins() -> None:
    def program() -> torch.Tensor:
        return torch.zeros(5).set_(torch.arange(10.0)[1:], 2, [2], [3])

    eager = program()
    with fake_mode():
        fake = program()
        assert fake.tolist() == eager.tolist() == [3.0, 6.0]
    with deferred_mode():
        deferred = program()
    assert fake.storage_offset() == deferred.storage_offset() == eager.storage_offset() == 3
    assert torch.equal(materialize_tensor(deferred), eager)
