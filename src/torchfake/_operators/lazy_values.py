"""Known values that are computed when they are first read, which for most is never.

Input: an operator whose arguments have known values. Output: a :class:`LazyValue`, for the storage
of its result, which runs the operator when its bytes are read. Invariant: the bytes of a lazy value
never change once they are computed; a storage that is to be written takes a copy if a lazy value
reads it too.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core.memory import flat_view, view_of
from torchfake._core.metadata import Metadata
from torchfake._core.storage import SharedBytes, Storage
from torchfake._torch import dispatcher, numerics

aten = torch.ops.aten

MAX_DEPTH = 24
"""How many lazy values may depend on each other: reading is recursive, and each keeps those that it
reads alive."""

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
"""Those that compute nothing, for which it has kernels of more dtypes: causal masks are of bool."""

_MOVED_DTYPES = _DTYPES | {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16
}  # fmt: skip


def can_be_lazy(packet: str, tensors: list[Any]) -> bool:
    """Whether the value of an operator on `tensors`, all known, may be computed when it is read."""
    dtypes = {getattr(t, "_fake_meta", t).dtype for t in tensors}
    if packet in ("aten::pow", "aten::pow_"):  # of integers it fails where the exponent is negative
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
    """A fake among the arguments of a lazy value: its metadata and value when that was made."""

    __slots__ = ("record", "value")

    def __init__(self, record: Metadata, storage: Storage) -> None:
        self.record = record
        self.value = storage.share()

    def tensor(self) -> torch.Tensor:
        return view_of(self.value.bytes(), self.record)


class LazyValue(SharedBytes):
    """The value of one operator on arguments of known values."""

    __slots__ = ("_call", "_num_bytes", "_numerics", "_record", "_writes_first", "depth")

    def __init__(self, func: Any, args: Any, kwargs: Any, record: Metadata, num_bytes: int) -> None:
        super().__init__(None)
        self._writes_first = func._schema.is_mutable
        self._call: Any = (func, args, kwargs)  # until it has run
        self._record = record
        self._num_bytes = num_bytes
        self._numerics = numerics.current()
        self.depth = 1 + max((_depth(arg) for arg in (*args, *kwargs.values())), default=0)

    def bytes(self) -> torch.UntypedStorage:
        if self.value is None:
            with dispatcher.no_interception(), numerics.applied(self._numerics):
                self.value = self._compute()
            self._call, self.depth = None, 0
        return self.value

    def _compute(self) -> torch.UntypedStorage:
        func, args, kwargs = self._call
        numbers = {name: to_real(arg) for name, arg in kwargs.items()}
        made = torch.UntypedStorage(self._num_bytes, device="cpu")
        if self._writes_first:  # a copy: others read what is there now
            before = flat_view(args[0].value.bytes(), torch.uint8)
            flat_view(made, torch.uint8).copy_(before)
            func(view_of(made, self._record), *map(to_real, args[1:]), **numbers)
        else:
            view_of(made, self._record).copy_(func(*map(to_real, args), **numbers))
        return made

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
