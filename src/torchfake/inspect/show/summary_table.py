"""A summary as the rows of a table, which text, terminal and notebook share.

Input: a Summary. Output: rows of plain strings. Invariant: there is one row for each module or
group of identical blocks, in order; names are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchfake.errors import printable
from torchfake.inspect.contents.tree import ModuleNode, Size, TensorNode
from torchfake.inspect.records.module_names import join_name
from torchfake.inspect.records.tensor_specs import TensorSpec
from torchfake.inspect.records.units import bytes_text, flops_text, operations_unit
from torchfake.inspect.summary import Summary

_HEADER = (
    *("module", "output", "parameters", "% of total", "active", "bytes", "buffer bytes"),
    *("FLOPs forward", "FLOPs backward", "tensors"),
)


def header() -> tuple[str, ...]:
    """The names of the columns; those of operations contain the unit, FLOPs or MACs."""
    return tuple(name.replace("FLOPs", operations_unit()) for name in _HEADER)


LEFT_ALIGNED = ("module", "output", "tensors")
"""The columns of text; other columns are numbers, aligned on the right."""


class Row(NamedTuple):
    """One row of the table: a module, or several identical blocks."""

    is_last: tuple[bool, ...]  # for each level, whether its module is the last of its siblings
    label: str  # "(layers) 24 x BlenderbotEncoderLayer"
    output: str  # "[2, 16, 64]"
    parameters: str
    share: str  # of the model's parameters, in percent
    active: str  # in a mixture of experts, the parameters used for one token
    bytes: str
    buffer_bytes: str
    forward: str  # FLOPs or MACs
    backward: str  # FLOPs or MACs
    tensors: tuple[str, ...]  # "weight [8, 4]", "bias [8]"
    is_folded: bool  # whether the row stands for several blocks

    @property
    def cells(self) -> tuple[str, ...]:
        """The columns after the label, as `header` names them."""
        return (*self[2:10], ", ".join(self.tensors))


def rows(summary: Summary, *, depth: int | None = None) -> list[Row]:
    """The rows of a summary, down to `depth` levels below the root."""
    return list(_RowMaker(summary).rows_of(summary.tree, (), "", depth))


class _RowMaker:
    """Creates the rows of one summary, omitting the most common dtype and device."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.dtype = next(iter(summary.by_dtype), "")
        self.device = next(iter(summary.by_device), "")
        self.trainable = summary.tree.size.num_trainable > 0

    def rows_of(
        self, node: ModuleNode, is_last: tuple[bool, ...], path: str, depth: int | None
    ) -> Iterator[Row]:
        label, block, folded = _class_text(node), node, node.repeat > 1
        names = [join_name(path, name) for name in node.names]
        while block.folded_block is not None:
            block, folded = block.folded_block, True
            names = [join_name(name, inner) for name in names for inner in block.names]
        if node.name:
            label = f"({node.name}) {label}"
        parameters, size, buffer_size = _size_cells(node.total)
        flops = self.summary.flops_of(names)
        yield Row(
            is_last,
            printable(label),
            self._output_text(names),
            parameters,
            self._share_cell(node.total),
            self._active_cell(names, node.total),
            size,
            buffer_size,
            _flops_cell(flops.forward),
            _flops_cell(flops.backward),
            self._tensor_texts(block),
            is_folded=folded,
        )
        if depth == 0:
            return
        child_depth = None if depth is None else depth - 1
        for i, child in enumerate(block.children):
            last = i + 1 == len(block.children)
            yield from self.rows_of(child, (*is_last, last), names[0], child_depth)

    def _share_cell(self, size: Size) -> str:
        if not size.num_parameters:
            return ""
        percent = 100 * size.num_parameters / self.summary.tree.size.num_parameters
        return f"{percent:.1f}" if percent >= 0.05 else "<0.1"

    def _active_cell(self, names: list[str], size: Size) -> str:
        if self.summary.active is None or not size.num_parameters:
            return ""
        return f"{self.summary.active_of(names, size.num_parameters):,}"

    def _output_text(self, names: list[str]) -> str:
        found = [self.summary.outputs[name] for name in names if name in self.summary.outputs]
        if not found:
            return ""
        text = output_text(found[0], dtype=self.dtype)
        return text if all(other == found[0] for other in found) else f"{text} (the first)"

    def _tensor_texts(self, node: ModuleNode) -> tuple[str, ...]:
        if node.shared_with is not None:
            return (printable(f"same module as {node.shared_with}"),)
        return tuple(printable(self._tensor_text(tensor)) for tensor in node.tensors)

    def _tensor_text(self, tensor: TensorNode) -> str:
        if tensor.tied_to is not None:
            return f"{tensor.name} tied to {tensor.tied_to}"
        shape = "lazy" if tensor.shape is None else f"[{', '.join(map(str, tensor.shape))}]"
        parts = [tensor.name, shape]
        if tensor.dtype != self.dtype:
            parts.append(tensor.dtype)
        if tensor.device != self.device:
            parts.append(f"on {tensor.device}")
        if tensor.kind == "buffer":
            parts.append("buffer" if tensor.persistent else "non-persistent buffer")
        elif not tensor.trainable and self.trainable:
            parts.append("frozen")
        return " ".join(parts)


def _flops_cell(count: int) -> str:
    return flops_text(count).removesuffix(operations_unit()).strip() if count else ""


def output_text(output: object, *, dtype: str = "", limit: int = 2) -> str:
    """The first `limit` shapes of an output; a dtype is shown only if it is not `dtype`.

    >>> output_text([TensorSpec((2, 3), "float32", "cpu"), None], dtype="float32")
    '[2, 3]'
    """
    found = list(_specs(output))
    texts = [f"{'' if s.dtype == dtype else s.dtype}{list(s.shape)}" for s in found[:limit]]
    return ", ".join(texts) + (", ..." if len(found) > limit else "")


def _specs(structure: object) -> Iterator[TensorSpec]:
    if isinstance(structure, TensorSpec):
        yield structure
    elif isinstance(structure, (dict, list)):
        for item in structure.values() if isinstance(structure, dict) else structure:
            yield from _specs(item)


def _class_text(node: ModuleNode) -> str:
    times = f"{node.repeat} x " if node.repeat > 1 else ""
    block = node.folded_block
    return times + (node.class_name if block is None else _class_text(block))


def _size_cells(size: Size) -> tuple[str, str, str]:
    return (
        f"{size.num_parameters:,}" if size.num_parameters else "",
        bytes_text(size.parameter_bytes) if size.num_parameters else "",
        bytes_text(size.buffer_bytes) if size.num_buffer_values else "",
    )


def footnote(rows: list[Row]) -> str:
    """The note on how to read folded rows; "" if there are none."""
    if any(row.is_folded for row in rows):
        return '"n x" rows total n identical blocks; the rows beneath show one of them.'
    return ""


def filled_columns(rows: list[Row]) -> list[int]:
    """The indices into Row.cells of the columns that are not empty."""
    return [i for i in range(len(_HEADER) - 1) if any(row.cells[i] for row in rows)]
