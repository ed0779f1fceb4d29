"""Dispatch keys: their kernels run, and other operators fall through."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from torchfake import deferred_mode
from torchfake._torch import dispatch_keys

aten = torch.ops.aten

UNUSED = """
import torch, torchfake
from torchfake._torch import dispatch_keys

def registered():
    keys = dispatch_keys.WRAPPER_KEY, dispatch_keys.CUDA_WRAPPER_KEY, dispatch_keys.RECORDING_KEY
    return [torch._C._dispatch_has_backend_fallback(each.key) for each in keys]

assert registered() == [False] * 3, registered()
with torchfake.fake_mode(fake_cuda=True):
    assert registered() == [False] * 3, registered()
    torch.empty(3)
    assert registered() == [True, False, False], registered()
    torch.empty(3, device="cuda")
assert registered() == [True, True, False], registered()
with torchfake.deferred_mode():
    assert registered() == [True] * 3, registered()
"""


def test_a_key_runs_its_kernels_and_falls_through_for_others() -> None:
    key, seen = dispatch_keys.WRAPPER_KEY, []
    assert isinstance(key, dispatch_keys.UnusedDispatchKey)
    assert key.key != dispatch_keys.AUTOCAST_KEY.key

    def kernel(redispatch: object, *args: object) -> object:
        seen.append(args)
        return redispatch(*args)  # type: ignore[operator]

    key.register(aten.hypot.default, kernel)
    with key.included():
        result = torch.hypot(torch.tensor(3.0), torch.tensor(4.0))
        assert torch.relu(torch.tensor(-1.0)) == 0
        with key.excluded():
            torch.hypot(torch.tensor(1.0), torch.tensor(1.0))
    assert result == 5
    assert len(seen) == 1
    torch.hypot(torch.tensor(3.0), torch.tensor(4.0))
    assert len(seen) == 1


def test_kernels_are_registered_before_a_key_is_first_used() -> None:
    """Not on import, which would take a sixth longer."""
    subprocess.run([sys.executable, "-c", UNUSED], check=True)


def test_an_interrupted_registration_is_made_again() -> None:
    key, calls = dispatch_keys.UnusedDispatchKey("TESTING_ONLY_GenericMode"), []

    def register() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise KeyboardInterrupt

    key.before_use(register)
    with pytest.raises(KeyboardInterrupt):
        key.prepare()
    assert key.keys.has(key.key)
    key.prepare()
    assert calls == [0, 1]


def test_a_kernel_is_registered_once() -> None:
    key, kernel = dispatch_keys.WRAPPER_KEY, lambda redispatch, *args: redispatch(*args)
    key.register(aten.copysign.Tensor, kernel)
    key.register(aten.copysign.Tensor, kernel)  # torch would refuse it
    assert key.has_kernel(aten.copysign.Tensor)


def test_autocast_key() -> None:
    previous = torch.is_autocast_enabled(dispatch_keys.AUTOCAST_KEY_DEVICE_TYPE)
    torch.set_autocast_enabled(dispatch_keys.AUTOCAST_KEY_DEVICE_TYPE, True)
    assert torch.is_autocast_enabled(dispatch_keys.AUTOCAST_KEY_DEVICE_TYPE)
    torch.set_autocast_enabled(dispatch_keys.AUTOCAST_KEY_DEVICE_TYPE, previous)
    assert previous is False


class Cube(torch.autograd.Function):
    """Under ``torch.func`` an operator that takes functions."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grad


class LaterOperator(torch._ops.HigherOrderOperator):
    """One that is made after torchfake was imported."""

    def __call__(self, *args: Any) -> Any: ...


@pytest.mark.parametrize(
    "key", [dispatch_keys.WRAPPER_KEY, dispatch_keys.RECORDING_KEY, dispatch_keys.CUDA_WRAPPER_KEY]
)
def test_higher_order_operators_fall_through(key: dispatch_keys.UnusedDispatchKey) -> None:
    with key.included():
        assert torch.func.grad(Cube.apply)(torch.tensor(2.0)) == 12
    later = LaterOperator("later_" + key._name)
    assert not later.non_fallthrough_keys.has(key.key)


def test_a_key_of_torch_goes_on_in_higher_order_operators() -> None:
    key = dispatch_keys.ZERO_WRAPPER_KEY
    later = LaterOperator("later_" + key._name)
    key.fall_through_in_higher_order_operators()
    assert key.key in later.py_kernels
    with key.included():
        assert torch.func.grad(Cube.apply)(torch.tensor(2.0)) == 12


def test_operators_with_derivatives_for_one_device() -> None:
    dispatch_keys.new_with_own_autograd()
    assert dispatch_keys.new_with_own_autograd() == []
    library = torch.library.Library("test_own_autograd", "DEF")
    library.define("halved(Tensor x) -> Tensor")
    library.impl("halved", lambda x: x / 2, "AutogradCPU")
    operator = torch.ops.test_own_autograd.halved.default
    found = dispatch_keys.new_with_own_autograd()
    assert operator in found
    assert aten.add.Tensor not in found
    key = dispatch_keys.own_autograd_key(operator, "cpu")
    assert key == torch._C.DispatchKey.AutogradCPU
    assert dispatch_keys.own_autograd_key(operator, "cuda") is None
    with torch.inference_mode():
        assert dispatch_keys.own_autograd_key(operator, "cpu") is None


def test_writes_that_only_the_operators_in_a_kernel_count() -> None:
    """A kernel in Python counts them by what it calls; for torch's operators autograd does."""

    def doubled(x: torch.Tensor) -> None:
        x.mul_(2)

    library = torch.library.Library("test_counted_writes", "DEF")
    library.define("doubled_(Tensor(a!) x) -> ()")
    library.impl("doubled_", doubled, "CPU")
    operator = torch.ops.test_counted_writes.doubled_.default
    assert dispatch_keys.counts_writes_in_python(operator)
    x = torch.ones(2)
    operator(x)
    assert x._version == 1
    assert not dispatch_keys.counts_writes_in_python(aten.mul_.Tensor)
    assert not dispatch_keys.counts_writes_in_python(aten.add.Tensor)


def test_operators_of_torchscript_have_no_kernels() -> None:
    """The dispatcher does not know them, and raises if it is asked."""
    assert not dispatch_keys.has_kernel("aten::sym_size", "CPU")
    assert dispatch_keys.has_kernel("aten::add.Tensor", "CPU")
    assert not dispatch_keys.has_kernel("aten::add.Tensor", "AutogradHPU")


@pytest.mark.filterwarnings("ignore")  # that nested and masked tensors are prototypes
def test_tensors_that_are_asked_by_such_operators_are_deferred() -> None:
    """Jagged tensors and masked ones: the error of the dispatcher would end the process."""
    with deferred_mode():
        rows = [torch.randn(2, 3), torch.randn(4, 3)]
        jagged = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        assert (jagged * 2).values().shape == (6, 3)
        assert torch.nn.Linear(3, 2)(jagged).values().shape == (6, 2)
        assert torch.nested.to_padded_tensor(jagged, 0.0).shape == (2, 4, 3)
        mask = torch.ones(3, 4, dtype=torch.bool)
        masked = torch.masked.masked_tensor(torch.randn(3, 4), mask)
        assert masked.sum(-1).get_data().shape == (3,)
