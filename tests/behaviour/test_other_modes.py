"""Dispatch modes, function modes, FLOP counters and torch's own fake mode beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor as TorchFakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.behaviour.networks import conv_network, train_conv_network
from tests.conftest import all_fake, describe
from torchfake import FakeTensor, deferred_mode, fake_like, fake_mode, is_fake


class Log(TorchDispatchMode):
    """Logs each operator, and runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []
        self.saw_fakes = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        self.saw_fakes |= any(isinstance(a, FakeTensor) for a in args)
        return func(*args, **(kwargs or {}))


def computed(ops: list[str]) -> list[str]:
    """The operators that compute. How data from Python arrives differs: fakes lift it in a step."""
    arrives = ("aten.detach", "aten._to_copy", "aten.lift")
    return [op for op in ops if not op.startswith(arrives)]


@pytest.mark.parametrize("order", ["above", "below"])
def test_dispatch_modes_see_what_they_see_in_eager(order: str) -> None:
    """A user's mode is above ours wherever it is entered, and sees eager's operators."""
    with Log() as eager:
        expected = describe(train_conv_network())
    log, fake = Log(), fake_mode()
    outer, inner = (fake, log) if order == "above" else (log, fake)
    with outer, inner:
        result = train_conv_network()
    assert describe(result) == expected
    assert all_fake(result)
    assert log.saw_fakes
    assert computed(log.ops) == computed(eager.ops)
    with Log() as after:
        result[0](fake_like(torch.randn(2, 3, 8, 8)))
    assert "aten.convolution.default" in after.ops


@pytest.mark.parametrize("order", ["above", "below"])
def test_function_modes(order: str) -> None:
    """A user's TorchFunctionMode sees every call, and may change it."""

    class Halve(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is torch.ones:
                kwargs = {**kwargs, "dtype": torch.float16}
            return func(*args, **kwargs)

    outer, inner = (fake_mode(), Halve()) if order == "above" else (Halve(), fake_mode())
    with outer, inner:
        made = torch.ones(2)
    assert is_fake(made)
    assert made.dtype is torch.float16


FLOP_PROGRAMS: dict[str, Callable[[], Any]] = {
    "train": train_conv_network,
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True)(*[torch.randn(2, 5, 8)] * 3),
    "sdpa": lambda: (
        F.scaled_dot_product_attention(*torch.randn(3, 2, 4, 6, 8).requires_grad_())
        .sum()
        .backward()
    ),
    "transformer": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16)(torch.randn(3, 2, 8)).sum().backward()
    ),
    "sdpa_3d": lambda: F.scaled_dot_product_attention(*torch.randn(3, 4, 6, 8)),
    "bmm": lambda: torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
    "einsum": lambda: torch.einsum("bij,bjk->bik", torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
    "conv_transpose": lambda: nn.ConvTranspose1d(3, 4, 3)(torch.randn(2, 3, 9)).sum().backward(),
}

UNCOUNTED = ("sdpa", "sdpa_3d") if torch.__version__ >= "2.14" else ("sdpa",)
"""What the CPU's flash attention does, in three dims since 2.14, which torch counts since 2.15."""


@pytest.mark.parametrize("order", ["above", "below"])
@pytest.mark.parametrize("name", FLOP_PROGRAMS)
def test_flops_equal_eagers(name: str, order: str) -> None:
    """FlopCounterMode counts on fakes what it counts in eager, operator by operator."""
    with FlopCounterMode(display=False) as expected:
        FLOP_PROGRAMS[name]()
    counter, fake = FlopCounterMode(display=False), fake_mode()
    outer, inner = (fake, counter) if order == "above" else (counter, fake)
    with outer, inner:
        FLOP_PROGRAMS[name]()
    assert counter.get_total_flops() == expected.get_total_flops()
    assert name in UNCOUNTED or expected.get_total_flops() > 0
    assert counter.get_flop_counts() == expected.get_flop_counts()


def test_flops_after_the_mode() -> None:
    """FLOPs are counted on fakes after their mode too, per module."""
    with fake_mode():
        module, x = conv_network(), torch.randn(2, 3, 8, 8)
    real = conv_network()
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    with FlopCounterMode(display=False) as expected:
        real(torch.randn(2, 3, 8, 8)).sum().backward()
    assert counter.get_flop_counts() == expected.get_flop_counts()


def test_torchs_own_fake_mode_nested() -> None:
    """The inner one of the two modes makes the tensors; the outer one works again afterwards."""
    with FakeTensorMode():
        theirs = torch.ones(2)
        with fake_mode():
            ours = torch.ones(2)
            assert isinstance(nn.Linear(2, 2)(ours), FakeTensor)
        assert isinstance(torch.ones(2) + 1, TorchFakeTensor)
    with fake_mode():
        with FakeTensorMode():
            assert isinstance(torch.ones(2) + 1, TorchFakeTensor)
            assert isinstance(nn.Linear(2, 2)(torch.ones(1, 2)), TorchFakeTensor)
        assert isinstance(torch.ones(2) + 1, FakeTensor)
    assert isinstance(theirs, TorchFakeTensor)
    assert isinstance(ours + 1, FakeTensor)
    assert type(torch.ones(2)) is torch.Tensor


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
def test_profiler_and_anomaly_modes() -> None:
    """Debug contexts of torch work on fakes."""
    with fake_mode():
        with torch.autograd.detect_anomaly(check_nan=False):
            train_conv_network()
        with torch.autograd.set_detect_anomaly(False), torch.autograd.graph.save_on_cpu():
            train_conv_network()


class Functions(TorchFunctionMode):
    """Logs the name of each function, and runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        self.names.append(f"{func.__self__.__name__}.{name}" if name == "__set__" else name)
        return func(*args, **(kwargs or {}))


def _set_data(x: Any) -> None:
    x.data = torch.ones(3)


CALLS: dict[str, Callable[[Any], Any]] = {
    "data": _set_data,
    "numpy": lambda x: x.numpy(),
    "tolist": lambda x: x.tolist(),
    "apply_": lambda x: x.apply_(lambda number: number + 1),
    "cpu": lambda x: x.cpu(),
    "type": lambda x: (x.type(), x.type(torch.float64)),
    "new": lambda x: (x.new(3), x.new_tensor([1.0])),
    "memory": lambda x: (x.untyped_storage(), x.data_ptr(), x.is_shared(), x.share_memory_()),
    "text": lambda x: (repr(x), f"{x}", f"{x[0]:.2f}"),
    "indices": lambda x: (len(x), x[[0, 1]], x.__setitem__([0, 1], 2)),
    "dlpack": lambda x: (x.__dlpack_device__(), x.get_device()),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", CALLS)
def test_function_modes_see_what_the_program_calls(name: str, mode: Any) -> None:
    def names() -> list[str]:
        x = torch.zeros(3)
        with Functions() as outer, Functions() as inner:
            CALLS[name](x)
        assert outer.names == inner.names
        return inner.names

    expected = names()
    with mode():
        assert names() == expected
