"""One place has all formulas: torch's registry, read at each call, and ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import flop_counter

from tests.opinfo.cuda_operators import operator_cases
from tests.opinfo.flops import REFUSED, UNCOUNTED, run, run_all, wrong
from torchfake import estimate, fake_mode
from torchfake.inspect import summary
from torchfake.inspect.arithmetic.formulas import flops_of, has_formula
from torchfake.observe import Observer, observing


@pytest.fixture
def op() -> Iterator[Any]:
    """An operator of one's own, that nobody has a formula for."""
    library = torch.library.Library("flops_test", "FRAGMENT")
    library.define("thing(Tensor x) -> Tensor")
    library.impl("thing", lambda x: torch.empty_like(x), "Meta")
    yield torch.ops.flops_test.thing
    flop_counter.flop_registry.pop(torch.ops.flops_test.thing, None)
    library._destroy()


class Calls(torch.nn.Module):
    def __init__(self, op: Any) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: torch.Tensor) -> Any:
        return self.op(self.op(x))


def test_all_of_torchs_formulas_are_among_them() -> None:
    for op in flop_counter.flop_registry:
        if isinstance(op, torch._ops.OpOverloadPacket):
            assert has_formula(getattr(op, op.overloads()[0]))
        else:
            assert has_formula(op)


def test_a_formula_counts_from_the_moment_on_at_which_it_is_registered(op: Any) -> None:
    with fake_mode():
        x = torch.empty(256)
    first = summary(Calls(op), x)
    assert first.flops[""] == (0, 0)
    assert first.uncounted == (("flops_test.thing", 2, 4096),)
    timed = estimate(Calls(op), x, gpu="h100-80gb")
    assert timed.uncounted == first.uncounted
    assert timed.schedule.flops == 0

    @flop_counter.register_flop_formula(op)
    def formula(x: Any, out_shape: Any = None, **rest: Any) -> int:
        return 1000 * x[0]

    later = summary(Calls(op), x)
    assert later.flops[""] == (512_000, 0)
    assert later.uncounted == ()
    timed = estimate(Calls(op), x, gpu="h100-80gb")
    assert timed.schedule.flops == 512_000
    assert timed.uncounted == ()


def test_a_call_that_is_reported_by_its_parts_is_not_counted_itself() -> None:
    with fake_mode():
        x = torch.empty(4, 4)
    assert flops_of(torch.ops.aten.mm.default, (x, x), {}, NotImplemented) is None


def test_products_of_quantized_tensors_count_once() -> None:
    from tests.quantized_tensor import Quantized

    class Counter(Observer):
        count = 0

        def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
            flops = flops_of(func, args, kwargs, result)
            self.count += 0 if flops is None else flops.total

    with fake_mode():
        weight = Quantized.of(torch.empty(8, 16))
        with observing(Counter()) as counter:
            torch.empty(4, 8) @ weight
    assert counter.count == 2 * 4 * 8 * 16


@pytest.mark.filterwarnings("ignore")  # of operators in beta
def test_a_part_of_torchs_operator_database() -> None:
    """All of it: ``nox -s flops``."""
    found = run_all(8, 1)
    assert not found.lines
    assert found.num_cases > 80
    assert found.refused.keys() <= REFUSED
    assert found.uncounted <= UNCOUNTED


@pytest.mark.parametrize("name", ["mv", "nn.functional.bilinear", "nn.functional.conv2d"])
def test_products_of_torchs_operator_database(name: str) -> None:
    cases = list(operator_cases([torch.float32], 1, 4, name))
    for case in cases:
        assert [*wrong(case, run(case))] == []
    assert cases
