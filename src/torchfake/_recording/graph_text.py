"""The recorded graph behind a deferred tensor, as text.

Input: a deferred tensor. Output: a :class:`Graph`, which prints as one line for each operation.
Invariant: nothing is replayed, and a graph is checked before it is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchfake._core.metadata import Metadata
from torchfake._graph.externals import External
from torchfake._graph.operations import Cell, Contents, Op, Read, dependencies
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch.distributed.dtensors import local_tensor_of
from torchfake.errors import NotDeferredError

_DTYPE_NAMES = {
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "u8", torch.bool: "b8", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One operation: its results, its name, its arguments, and the line of code that called it."""

    results: str  # "$3: bf16[8, 4]"
    op: str  # "aten.mul"
    arguments: str  # "$1, 2"
    where: str  # "LlamaMLP.__init__ at modeling_llama.py:123", or empty

    def __str__(self) -> str:
        text = f"{self.results} = {self.op}({self.arguments})"
        return f"{text}  # {self.where}" if self.where else text


class Graph:
    """The operations that compute a deferred tensor, in the recorded order.

    Attributes:
        lines: one :class:`Line` for each operation.
        result: the tensor in terms of the lines' results: ``"$3"``, or a view of ``$3``.
    """

    def __init__(self, contents: Contents, record: Metadata) -> None:
        self._ops = dependencies([contents.op])
        self._names: dict[tuple[Op | None, Cell], str] = {}
        self._records: dict[Cell, Metadata] = {}
        self.lines: list[Line] = []
        _check_order_and_bounds(self._ops, contents, record)
        for op in self._ops:
            self.lines.append(self._line(op))
        self.result = self._read(Read(contents, record))

    def __str__(self) -> str:
        return "\n".join([*map(str, self.lines), f"return {self.result}"])

    __repr__ = __str__

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def _line(self, op: Op) -> Line:
        arguments = [self._value(arg) for arg in op.args]
        arguments += [f"{name}={self._value(arg)}" for name, arg in op.kwargs.items()]
        results = [self._name(op, output.cell, output.record) for output in op.outputs]
        records = {read.contents.cell: read.record for read in op.reads()}
        results += [self._name(op, cell, records[cell]) for cell in op.mutated if cell in records]
        return Line(", ".join(results), _op_name(op), ", ".join(arguments), _location(op))

    def _name(self, op: Op, cell: Cell, record: Metadata) -> str:
        """A new name for the contents that `op` leaves in `cell`, with the dtype and shape of its
        first name.
        """
        name = self._names[op, cell] = f"${len(self._names)}"
        return f"{name}: {_typed_shape(self._records.setdefault(cell, record))}"

    def _value(self, arg: Any) -> str:
        if type(arg) is Read:
            return self._read(arg)
        if type(arg) is External:
            return f"<real {_dtype_name(arg.tensor.dtype)}{list(arg.tensor.shape)}>"
        if type(arg) in (list, tuple):
            return f"[{', '.join(map(self._value, arg))}]"
        return str(arg).removeprefix("torch.") if isinstance(arg, torch.dtype) else str(arg)

    def _read(self, read: Read) -> str:
        """The name of the contents that a tensor argument reads, and its view of the contents."""
        record = read.record
        name = self._names.get((read.contents.op, read.contents.cell))
        if name is None:
            return f"<empty {_typed_shape(record)}>"
        known = self._records[read.contents.cell]
        same = (record.size, record.stride, record.offset) == (
            known.size,
            known.stride,
            known.offset,
        )
        if record.dtype != known.dtype:
            name += f".view({_dtype_name(record.dtype)})"
        if same:
            return name
        if record.is_contiguous and record.offset == known.offset:
            return f"{name}.view({list(record.size)})"
        return f"{name}.as_strided({list(record.size)}, {list(record.stride)}, {record.offset})"


def _typed_shape(record: Metadata) -> str:
    return f"{_dtype_name(record.dtype)}{list(record.size)}"


def _dtype_name(dtype: torch.dtype) -> str:
    return _DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def _op_name(op: Op) -> str:
    packet = getattr(op.func, "overloadpacket", None)
    name = str(packet) if packet is not None else f"{op.func.__module__}.{op.func.__qualname__}"
    return name if op.unreplayable_reason is None else f"{name} of unknown values"


def _location(op: Op) -> str:
    if op.source_location is None:
        return ""
    code = op.source_location.code
    scope = getattr(code, "co_qualname", code.co_name)
    return f"{scope} at {os.path.basename(code.co_filename)}:{op.source_location.line}"


def _check_order_and_bounds(ops: list[Op], contents: Contents, record: Metadata) -> None:
    """Check that each operation reads contents of earlier operations, within their bytes."""
    reads = [(op.number, read) for op in ops for read in op.reads()]
    last = 1 + max((op.number for op in ops), default=0)
    for number, read in [*reads, (last, Read(contents, record))]:
        source, seen = read.contents.op, read.record
        assert source is None or source.number < number, f"operation {number} reads its future"
        assert seen.end_bytes <= read.contents.cell.num_bytes, f"operation {number} reads {seen}"


def graph(tensor: torch.Tensor) -> Graph:
    """Return the recorded operations that compute a deferred tensor, as printable text.

    Args:
        tensor: a deferred tensor of any shape; for a DTensor, the graph is that of this rank's
            shard.

    Raises:
        NotDeferredError: (a ValueError) for anything else, including a materialized tensor.

    >>> from torchfake import deferred_mode
    >>> with deferred_mode():
    ...     weight = torch.empty(8, 4).fill_(1.0) * 2
    >>> print(graph(weight).lines[-1].op)
    aten.mul
    """
    tensor = local_tensor_of(tensor)
    deferred = tensor._fake_storage.deferred if isinstance(tensor, FakeTensor) else None
    if deferred is None:
        raise NotDeferredError(
            f"graph takes a deferred tensor, not {type(tensor).__name__}; see deferred_init"
        )
    return Graph(deferred.contents, tensor._fake_meta)  # type: ignore[attr-defined]
