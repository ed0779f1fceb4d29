"""Known values that are computed when somebody reads them, which for most is never.

Enters: an operator on known values. Leaves: its value, as a node that remembers the operator until
it is asked. Invariant: a node's bytes never change once they are there; a storage that is to be
written takes a copy if another node looks at them.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake import _private
from torchfake._memory import view_of
from torchfake._metadata import Held, Metadata, Storage

aten = torch.ops.aten

MAX_DEPTH = 24
"""A chain of nodes no longer than this: reading is recursive, and each keeps those before alive."""

_CANNOT_FAIL = frozenset(
    {"aten::arange", "aten::linspace", "aten::mul", "aten::add", "aten::sub", "aten::div",
     "aten::reciprocal", "aten::sin", "aten::cos", "aten::tan", "aten::tanh", "aten::exp",
     "aten::log", "aten::log2", "aten::sqrt", "aten::rsqrt", "aten::sinc", "aten::neg", "aten::abs",
     "aten::sign", "aten::sum", "aten::mean", "aten::stack", "aten::cat", "aten::clone",
     "aten::_to_copy", "aten::lt", "aten::gt", "aten::le", "aten::ge", "aten::eq", "aten::ne",
     "aten::tril", "aten::triu", "aten::flip", "aten::roll",
     "aten::mul_", "aten::add_", "aten::sub_", "aten::div_", "aten::copy_", "aten::neg_"}
)  # fmt: skip
"""Operators that no value makes fail: what eager raises at once must not be raised later."""

_DTYPES = frozenset({torch.float32, torch.float64, torch.int64, torch.int32})
"""Dtypes for which the CPU has a kernel of each of them."""


def can_wait(packet: str, tensors: list[Any]) -> bool:
    """Whether the value of an operator on `tensors`, all known, may be computed later."""
    dtypes = {getattr(t, "_fake_meta", t).dtype for t in tensors}
    if packet == "aten::pow":  # of integers it fails where the exponent is negative
        return all(dtype.is_floating_point and dtype in _DTYPES for dtype in dtypes)
    return packet in _CANNOT_FAIL and dtypes <= _DTYPES


class Known:
    """A fake among the arguments of a node: what it was when the node was made."""

    __slots__ = ("node", "record")

    def __init__(self, record: Metadata, storage: Storage) -> None:
        self.record = record
        self.node = storage.share()

    def tensor(self) -> torch.Tensor:
        return view_of(self.node.bytes(), self.record)


class Later(Held):
    """The value of one operator on arguments that are known."""

    __slots__ = ("_call", "_default_dtype", "_is_written", "_num_bytes", "_record", "depth")

    def __init__(self, func: Any, args: Any, kwargs: Any, record: Metadata, num_bytes: int) -> None:
        super().__init__(None)
        self._is_written = func._schema.is_mutable
        self._call: Any = (func, args, kwargs)  # until it has run
        self._record = record
        self._num_bytes = num_bytes
        self._default_dtype = torch.get_default_dtype()
        self.depth = 1 + max((_depth(arg) for arg in (*args, *kwargs.values())), default=0)

    def bytes(self) -> torch.UntypedStorage:
        if self.value is None:
            with _private.nobody_watching(), _private.default_dtype(self._default_dtype):
                self.value = self._compute()
            self._call, self.depth = None, 0
        return self.value

    def _compute(self) -> torch.UntypedStorage:
        func, args, kwargs = self._call
        real = [_real(arg) for arg in args]
        if self._is_written:  # what is there must stay as it is, for others who look at it
            real[0] = real[0].clone()
        result = func(*real, **{name: _real(arg) for name, arg in kwargs.items()})
        made = torch.UntypedStorage(self._num_bytes, device="cpu")
        view_of(made, self._record).copy_(result)
        return made

    @property
    def num_bytes(self) -> int:
        return self._num_bytes


def _depth(arg: Any) -> int:
    if isinstance(arg, Known):
        return getattr(arg.node, "depth", 0)
    if isinstance(arg, list):
        return max(map(_depth, arg), default=0)
    return 0


def _real(arg: Any) -> Any:
    if isinstance(arg, Known):
        return arg.tensor()
    if isinstance(arg, list):
        return [_real(item) for item in arg]
    return arg
