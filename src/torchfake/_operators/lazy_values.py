"""Known values that are computed when they are first read; most are never read.

Input: an operator whose arguments have known values. Output: a :class:`LazyValue`, for the storage
of its result, which runs the operator when its bytes are read. Invariant: the bytes of a lazy value
never change once they are computed; a storage that is to be written takes a copy if a lazy value
reads it too.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import devices
from torchfake._core.memory import flat_view, view_of
from torchfake._core.metadata import Metadata
from torchfake._core.storage import NO_BYTES, SharedBytes, Storage
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatcher, numerics

aten = torch.ops.aten

MAX_DEPTH = 24
"""The longest chain of lazy values that depend on each other: reading a value is recursive, and a
value keeps the values that it reads alive."""

_ELEMENTWISE = (
    "mul", "add", "sub", "div", "reciprocal", "sin", "cos", "tan", "tanh", "exp", "log", "log2",
    "sqrt", "rsqrt", "neg", "abs", "expm1", "log1p", "sigmoid", "floor", "ceil", "round", "trunc",
    "sign", "sinc", "clamp", "clamp_min", "clamp_max", "erf", "erfinv",
)  # fmt: skip

_NEVER_FAILING = frozenset(
    {"aten::arange", "aten::linspace", "aten::maximum", "aten::minimum", "aten::cumsum",
     "aten::repeat", "aten::sum", "aten::mean", "aten::stack", "aten::cat", "aten::clone",
     "aten::_to_copy", "aten::lt", "aten::gt", "aten::le", "aten::ge", "aten::eq", "aten::ne",
     "aten::tril", "aten::triu", "aten::flip", "aten::roll", "aten::copy_", "aten::zero_"}
    | {f"aten::{name}" for name in _ELEMENTWISE}
    | {f"aten::{name}_" for name in _ELEMENTWISE}
)  # fmt: skip
"""Operators that no value of their arguments makes fail: an error that eager raises at once must
not come later.
"""

_DTYPES = frozenset({torch.float32, torch.float64, torch.int64, torch.int32})
"""Dtypes for which the CPU has kernels of all these operators."""

_MOVING = frozenset(
    {"aten::tril", "aten::triu", "aten::flip", "aten::roll", "aten::clone", "aten::_to_copy",
     "aten::copy_", "aten::zero_", "aten::stack", "aten::cat", "aten::eq", "aten::ne"}
)  # fmt: skip
"""Operators of ``_NEVER_FAILING`` that compute nothing: the CPU has their kernels for all dtypes of
``_MOVED_DTYPES``, such as bool for causal masks."""

_MOVED_DTYPES = _DTYPES | {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16
}  # fmt: skip


def can_be_lazy(packet: str, tensors: list[Any]) -> bool:
    """Whether the value of an operator on `tensors`, all known, may be computed when it is read."""
    dtypes = {getattr(t, "_fake_meta", t).dtype for t in tensors}
    if packet in ("aten::pow", "aten::pow_"):  # integers to a negative power are an error
        return all(dtype.is_floating_point and dtype in _DTYPES for dtype in dtypes)
    return packet in _NEVER_FAILING and dtypes <= (_MOVED_DTYPES if packet in _MOVING else _DTYPES)


_OF_INTEGERS = frozenset(f"aten::{name}_" for name in ("add", "sub", "mul", "neg", "abs", "sign"))
"""In-place operators whose results are integers if all arguments are."""


def keeps_dtype(call: Any) -> bool:
    """Whether the result of an in-place operator can be cast to the dtype that it is written to,
    which eager checks at once: floats take any number, integers only integers.
    """
    packet, written = call.traits.packet, call.args[0].dtype
    if written.is_floating_point or packet in ("aten::copy_", "aten::zero_"):
        return True
    others = [*call.args[1:], *call.kwargs.values()]
    return packet in _OF_INTEGERS and all(
        arg.dtype in _DTYPES and not arg.is_floating_point()
        if isinstance(arg, torch.Tensor)
        else type(arg) is int
        for arg in others
    )


class KnownArgument:
    """A fake among the arguments of a lazy value: its metadata and value at the call."""

    __slots__ = ("record", "value")

    def __init__(self, record: Metadata, storage: Storage) -> None:
        self.record = record
        self.value = NO_BYTES if 0 in record.size else storage.share()

    def tensor(self) -> torch.Tensor:
        return view_of(self.value.bytes(), self.record)


class LazyValue(SharedBytes):
    """The value of an operator's result, computed from known arguments when it is first read."""

    __slots__ = ("_call", "_num_bytes", "_numerics", "_record", "_writes_first", "depth")

    def __init__(self, func: Any, args: Any, kwargs: Any, record: Metadata, num_bytes: int) -> None:
        super().__init__(None)
        self._writes_first = func._schema.is_mutable
        self._call: Any = (func, args, kwargs)  # None once the value is computed
        self._record = record
        self._num_bytes = num_bytes
        self._numerics = numerics.current()
        self.depth = 1 + max(map(_depth, (*args, *kwargs.values())), default=0)

    def bytes(self) -> torch.UntypedStorage:
        if self.value is not None:
            return self.value
        func, args, kwargs = self._call
        with dispatcher.no_interception(), numerics.applied(self._numerics):
            numbers = {name: to_real(arg) for name, arg in kwargs.items()}
            made = torch.UntypedStorage(self._num_bytes, device="cpu")
            if self._writes_first:  # into a copy: other values may read the old bytes
                before = flat_view(args[0].value.bytes(), torch.uint8)
                flat_view(made, torch.uint8).copy_(before)
                func(view_of(made, self._record), *map(to_real, args[1:]), **numbers)
            else:
                view_of(made, self._record).copy_(func(*map(to_real, args), **numbers))
        self.value, self._call, self.depth = made, None, 0
        return made

    def is_result_of(self, func: Any) -> bool:
        """Whether the value is still to be computed, by `func`."""
        return self._call is not None and self._call[0] is func

    @property
    def num_bytes(self) -> int:
        return self._num_bytes


def _depth(arg: Any) -> int:
    if isinstance(arg, KnownArgument):
        return getattr(arg.value, "depth", 0)
    if isinstance(arg, list):
        return max(map(_depth, arg), default=0)
    return 0


def to_real(arg: Any) -> Any:
    if isinstance(arg, KnownArgument):
        return arg.tensor()
    if isinstance(arg, list):
        return [to_real(item) for item in arg]
    return arg


def lazy_value(
    func: Any, args: Args, kwargs: Kwargs, record: Metadata, num_bytes: int
) -> LazyValue:
    """The value of a storage of `num_bytes` that holds the result, with metadata `record`, of a
    call on fakes of known values. The value is computed when it is first read.
    """
    kept = [_lazy_argument(arg) for arg in args]
    named = {name: _lazy_argument(arg) for name, arg in kwargs.items() if name != "pin_memory"}
    lazy = LazyValue(func, kept, named, record, num_bytes)
    if lazy.depth > MAX_DEPTH:
        lazy.bytes()
    return lazy


def _lazy_argument(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return KnownArgument(value._fake_meta, value._fake_storage)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()  # real: the caller may write it
    if isinstance(value, (list, tuple)):
        return [_lazy_argument(item) for item in value]
    return devices.CPU if isinstance(value, torch.device) else value
