"""``torch.jit.trace`` in a mode: a trace whose constants are real.

Input: a function that C++ traces in a mode. Output: its graph, with a real tensor in the place of
each fake that is neither an input nor a parameter or buffer. Invariant: no graph that is returned
holds a fake, or the device of a carrier.

While a function is traced, torch records what is asked of a size, and remembers the numbers of the
next call that are traced. So what is computed inside a dispatch is computed as if there were no
trace, as in the dispatches that C++ makes itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch

from torchfake._core import devices, modes
from torchfake._dispatch import FakeDispatch
from torchfake._patches import while_fakes_live
from torchfake._patches.patch import replacing
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatcher
from torchfake._torch.compiler import scripts
from torchfake._torch.compiler.python_functions import Replacement
from torchfake.errors import TraceError, UnknownValueError

_CONVOLUTION = torch.ops.aten.convolution.default
_TRACED_CONVOLUTION = torch.ops.aten._convolution.default  # with four more arguments
_EQUAL = torch.ops.aten.eq.Tensor
_NUMBERS = (bool, int, float, complex)


class _TraceDispatch(FakeDispatch):
    """What is in torch's FAKE slot while a function is traced, or a trace is checked: the mode's
    dispatch, untraced.
    """

    def __init__(self, mode: Any) -> None:
        super().__init__()  # which does not decompose composites: they are recorded as a whole
        self._mode = mode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mode, name)  # which may belong to an observer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _CONVOLUTION and scripts.is_tracing():
            with self.active(), scripts.traced():  # as in the kernel of real tensors
                return _TRACED_CONVOLUTION(*args, *scripts.settings_of_convolutions())
        with scripts.untraced():
            if func is _TRACED_CONVOLUTION:
                func, args = _CONVOLUTION, args[:9]
            elif _gets_numbers_alone(func, args):
                args = [torch.tensor(arg) if type(arg) in _NUMBERS else arg for arg in args]
            return self._mode.__torch_dispatch__(func, types, args, kwargs or {})


def _gets_numbers_alone(func: Any, args: Any) -> bool:
    """Whether constants are compared, which C++ has made of numbers: Python sees numbers again."""
    if func is _EQUAL:
        return any(type(arg) in _NUMBERS for arg in args)
    if not args or type(args[0]) not in _NUMBERS or any(isinstance(a, torch.Tensor) for a in args):
        return False
    return all(str(a.type) == "Tensor" for a, _ in zip(func._schema.arguments, args, strict=False))


def _in_trace_dispatch(call: Callable[[], Any]) -> Any:
    """Call it from one line: C++ notes where a constant was made, and a check of a trace compares
    graphs as text.
    """
    mode: Any = dispatcher.current_fake_mode()
    is_fake_mode = isinstance(mode, FakeDispatch) and not isinstance(mode, _TraceDispatch)
    is_new = modes.current() is not None and is_fake_mode
    with dispatcher.in_fake_slot(_TraceDispatch(mode)) if is_new else nullcontext():
        return call()


@replacing
def _tracing(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A C++ function that calls a Python function, and makes a script of what it does."""
    result = _in_trace_dispatch(functools.partial(original, *args, **kwargs))
    if modes.current() is not None:
        _make_real(scripts.graphs_of(args[0] if result is None else result))
    return result


def _make_real(graphs: Iterable[Any]) -> None:
    """Exchange the fakes that are constants, and the devices of carriers that values have."""
    for graph in graphs:
        for node, constant in scripts.tensor_constants(graph):
            if isinstance(constant, FakeTensor):
                scripts.set_constant(node, _value_of(constant))
        scripts.map_devices(graph, devices.decode)


def _value_of(constant: FakeTensor) -> Any:
    try:
        with known_values.without_fake_mode():
            return known_values.read_value(constant, "torch.jit.trace").clone()
    except UnknownValueError as error:
        raise TraceError(
            "torch.jit.trace keeps the values of tensors that are neither inputs nor parameters or "
            f"buffers of the module, and one is not known: {known_values.describe(constant)}. Make "
            "it an input, a parameter or a buffer, or trace outside of the mode. "
            "torchfake.fx.make_fx makes a graph that may hold fakes"
        ) from error


@replacing
def _checking(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The function that compares what a trace and the function that was traced return."""
    try:
        return _in_trace_dispatch(functools.partial(original, *args, **kwargs))
    except Exception as error:
        if not _is_for_unknown_value(error):
            raise
        raise TraceError(
            "torch.jit.trace compares what the trace and the function that was traced return, "
            "and the values of fakes are not known: pass check_trace=False"
        ) from error


def _is_for_unknown_value(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, UnknownValueError):
        error = error.__cause__ or error.__context__
    return error is not None


def _replacements() -> list[Replacement]:
    tracing: list[Replacement] = [(owner, name, _tracing) for owner, name in scripts.TRACING]
    return [*tracing, (*scripts.CHECK_OF_TRACES, _checking)]


while_fakes_live.replacements["torch.jit._trace"] = _replacements
