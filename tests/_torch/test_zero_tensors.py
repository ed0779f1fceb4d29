"""Zero tensors of torch: made, recognised, and handed to Python where wrappers are viewed."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from torchfake import FakeTensor, deferred_mode, fake_mode, materialize_tensor
from torchfake._torch import dispatch_keys, zero_tensors

CPU = torch.device("cpu")


def test_zero_tensor() -> None:
    zero = zero_tensors.zero_tensor((2, 3), (1, 2), 4, torch.float64, CPU)
    assert zero_tensors.is_zero_tensor(zero)
    assert (zero.stride(), zero.storage_offset(), zero.dtype) == ((1, 2), 4, torch.float64)
    assert torch.equal(zero + 0, torch.zeros(2, 3, dtype=torch.float64))
    assert zero_tensors.is_zero_tensor(zero * torch.full((2, 3), torch.inf, dtype=torch.float64))
    empty = zero_tensors.zero_tensor((0, 3), (3, 1), 0, torch.float32, CPU)
    assert empty.shape == (0, 3)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_forward_mode_makes_zero_tensors() -> None:
    with forward_ad.dual_level():
        product = forward_ad.make_dual(torch.ones(3), torch.ones(3)) * torch.ones(3)
        sign = torch.linalg.slogdet(forward_ad.make_dual(torch.eye(2), torch.ones(2, 2))).sign
        assert not zero_tensors.is_zero_tensor(forward_ad.unpack_dual(product).tangent)
        assert zero_tensors.is_zero_tensor(forward_ad.unpack_dual(sign).tangent)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float16, torch.complex64])
def test_zero_number(dtype: torch.dtype) -> None:
    number = zero_tensors.zero_number(dtype)
    assert number == 0
    assert type(number) is type(torch.ones((), dtype=dtype).item())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_bindings_ask_for_the_number() -> None:
    """The tangent of a number is a zero tensor that bindings hand to Python as a number."""
    with fake_mode(), forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        assert forward_ad.unpack_dual(dual * 2.0).tangent.shape == (3,)


VIEWS = {
    "view": lambda t: t.view(3, 2),
    "as_strided": lambda t: t.as_strided((2,), (1,)),
    "_reshape_alias": lambda t: torch.ops.aten._reshape_alias(t, [3, 2], [2, 1]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_reach_python(name: str) -> None:
    zero_tensors.dispatch_views_to_python()
    assert zero_tensors.wrapper_keys().has(dispatch_keys.ZERO_WRAPPER_KEY.key)
    with fake_mode():
        view = VIEWS[name](torch._efficientzerotensor((2, 3)))
    assert type(view) is FakeTensor
    assert zero_tensors.is_zero_tensor(view)
    assert zero_tensors.is_zero_tensor(VIEWS[name](torch._efficientzerotensor((2, 3))))


def test_no_other_kernel_of_zero_tensors_views() -> None:
    """All other operators with a kernel for zero tensors compute, or fall through."""
    key = "ZeroTensor"
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    lines = {
        name: [
            line
            for line in torch._C._dispatch_dump_table(name).splitlines()
            if line.startswith(key)
        ]
        for name in names
    }
    own = {name for name, line in lines.items() if "fallthrough" not in line[0]}
    views = {"aten::view", "aten::as_strided", "aten::_reshape_alias"}
    arithmetic = {f"aten::{name}.Tensor" for name in ("add", "sub", "mul", "div")}
    assert own == views | arithmetic | {"aten::linalg_cross"}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_tangents() -> None:
    x, t = torch.randn(3), torch.randn(3)
    assert zero_tensors.tangent_of(x) is None
    op, options = torch.ops.aten.prod.dim_int, {"dtype": torch.float64}
    outside = zero_tensors.tangent_of_result(op, 0, [x, 0], [t, None], options)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        assert zero_tensors.tangent_of(dual) is t
        assert zero_tensors.tangent_of(3) is None
        inside = zero_tensors.tangent_of_result(op, 0, [x, 0], [t, None], options)
        expected = torch.autograd.forward_ad.unpack_dual(op(dual, 0, **options)).tangent
    assert torch.equal(inside, outside)
    assert torch.equal(inside, expected)


def test_zero_tensors_are_multiplied_by_numbers() -> None:
    """Kernels compute with them: they have no memory that these could read."""

    def product() -> torch.Tensor:
        zero = torch.ops.aten.mul.Scalar(torch._efficientzerotensor((2, 2)), 2.0)
        return zero * torch.ones(2, 2) + zero

    with fake_mode():
        assert product().tolist() == product().tolist() == [[0, 0], [0, 0]]
    with deferred_mode():
        deferred = product()
    assert torch.equal(materialize_tensor(deferred), torch.zeros(2, 2))
