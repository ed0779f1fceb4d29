"""What a call writes has eager's size: as before, another one, or the call is refused."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization

from torchfake import deferred_init, deferred_mode, fake_mode, materialize_module

IN_PLACE = (
    "eq_", "lt_", "pow_", "atan2_", "fmod_", "remainder_", "hypot_", "copysign_", "float_power_",
    "xlogy_", "heaviside_", "floor_divide_", "bitwise_and_", "bitwise_left_shift_", "gcd_",
    "clamp_min_", "igamma_", "add_", "mul_", "logical_and_", "masked_fill_", "copy_", "__ior__",
)  # fmt: skip
SIZES = (
    ((1, 3), (0, 3)), ((1,), (0,)), ((), (0,)), ((2, 1), (2, 0)), ((1, 3), (0, 1, 3)),
    ((1, 3), (2, 3)), ((0, 3), (0, 1)), ((0,), (1,)),
)  # fmt: skip


def outcome(program: Callable[[], Any]) -> Any:
    try:
        return program()
    except RuntimeError:
        return "refused"


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_written_in_place_keeps_its_size(name: str) -> None:
    """A result without elements is broadcast like others: it does not fit what has some."""
    for size, other in SIZES:

        def program(size: Any = size, other: Any = other) -> Any:
            x, y = (torch.ones(each, dtype=torch.int64) for each in (size, other))
            getattr(x, name)(*((y.bool(), 1) if name == "masked_fill_" else (y,)))
            return x.shape, x.stride()

        eager = outcome(program)
        for mode in (fake_mode, deferred_mode):
            with mode():
                assert outcome(program) == eager, (size, other)


@pytest.mark.parametrize("is_on", list(itertools.product((0, 1), (0, 1))))
@pytest.mark.parametrize("channels", [False, True])
def test_an_observer_of_channels_gives_each_an_element(is_on: Any, channels: bool) -> None:
    """At its first call, whether it is on or not."""

    def program() -> Any:
        first = [torch.empty(0)] * 2 if channels else [torch.ones(()), torch.ones(())]
        bounds = [each.clone() for each in first]
        scale, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
        observer, rounding = map(torch.tensor, is_on)
        made = torch.fused_moving_avg_obs_fake_quant(
            torch.ones(4, 3), observer, rounding, *bounds, scale, zero, 0.01, 0, 255, 0, channels
        )
        return [(t.shape, t.stride()) for t in (made, *bounds, scale, zero)]

    eager = program()
    for mode in (fake_mode, deferred_mode):
        with mode():
            assert program() == eager


@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 3), lambda: nn.Conv2d(3, 4, 1)])
def test_a_model_that_learns_its_quantization_has_the_values_of_eager(
    backend: str, make: Callable[[], nn.Module]
) -> None:
    def program() -> nn.Module:
        torch.manual_seed(0)
        module = make()
        given = torch.rand(2, 3) if isinstance(module, nn.Linear) else torch.rand(2, 3, 2, 2)
        module.qconfig = quantization.get_default_qat_qconfig(backend)  # type: ignore[assignment]
        model = nn.Sequential(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torchao is to be used
            quantization.prepare_qat(model, inplace=True)
        model(given)
        model(given)
        return model

    eager, late = program().state_dict(), deferred_init(program)
    materialize_module(late)
    for name, value in late.state_dict().items():
        assert torch.equal(value, eager[name]), name


@pytest.mark.parametrize(
    ("one", "other"), [((4, 5, 3), (3, 2)), ((3,), (4, 3, 2)), ((3, 2), (2, 3)), ((2, 3), (3,))]
)
def test_a_product_into_a_tensor_has_no_gradient(one: Any, other: Any) -> None:
    def program() -> Any:
        given = torch.ones(one), torch.ones(other, requires_grad=True)
        with torch.no_grad():
            shape = torch.matmul(*given, out=torch.empty(0)).shape
        return shape, outcome(lambda: torch.matmul(*given, out=torch.empty(0)))

    eager = program()
    for mode in (fake_mode, deferred_mode):
        with mode():
            assert program() == eager
