"""A summary as the rows of a tree, in columns.

Input: a Summary. Output: blocks of rows. Invariant: there is one row for each module or group of
identical blocks, in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfake.inspect.contents.tree import ModuleNode, Size, TensorNode
from torchfake.inspect.records.module_names import join_name
from torchfake.inspect.records.tensor_specs import TensorSpec
from torchfake.inspect.records.units import bytes_text, flops_text, operations_unit
from torchfake.inspect.show.rows import SHAPE, Block, Column, Row
from torchfake.inspect.summary import Summary


def tree_blocks(summary: Summary, *, depth: int | None = None) -> list[Block]:
    """The tree of a summary, down to `depth` levels below the root, and how to read it."""
    maker = _RowMaker(summary)
    rows = [*maker.rows_of(summary.tree, 0, "", depth)]
    note = Block(note='"n x" rows total n identical blocks; the rows beneath show one of them.')
    return [Block(rows, _columns()), *[note] * maker.has_folded]


def _columns() -> tuple[Column, ...]:
    """The columns; those of operations contain the unit, FLOPs or MACs."""
    unit = operations_unit()
    return (
        Column("module"),
        Column("output", need=7, under="gives ", emphasis=SHAPE),
        Column("parameters", "{:,}".format),
        Column("% of total", str, need=2),
        Column("active", "{:,}".format, need=3),
        Column("bytes", bytes_text),
        Column("buffer bytes", bytes_text, need=6),
        Column(f"{unit} forward", _flops_text, need=4),
        Column(f"{unit} backward", _flops_text, need=5),
        Column("tensors", need=8, under="", emphasis=SHAPE),
    )


class _RowMaker:
    """Creates the rows of one summary, omitting the most common dtype and device."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary
        self.dtype = next(iter(summary.by_dtype), "")
        self.device = next(iter(summary.by_device), "")
        self.trainable = summary.tree.size.num_trainable > 0
        self.has_folded = False  # whether a row stands for several blocks

    def rows_of(self, node: ModuleNode, level: int, path: str, depth: int | None) -> Iterator[Row]:
        label, block = _class_text(node), node
        names = [join_name(path, name) for name in node.names]
        while block.folded_block is not None:
            block = block.folded_block
            names = [join_name(name, inner) for name in names for inner in block.names]
        self.has_folded |= node.repeat > 1 or block is not node
        if node.name:
            label = f"({node.name}) {label}"
        yield Row(label, self._values(node.total, names, block), level)
        if depth == 0:
            return
        child_depth = None if depth is None else depth - 1
        for child in block.children:
            yield from self.rows_of(child, level + 1, names[0], child_depth)

    def _values(self, size: Size, names: list[str], block: ModuleNode) -> tuple[object, ...]:
        """The cells of a row after its name, in the order of `_columns`."""
        flops = self.summary.flops_of(names)
        return (
            self._output_text(names),
            size.num_parameters or None,
            self._share(size),
            self._num_active(names, size),
            size.parameter_bytes if size.num_parameters else None,
            size.buffer_bytes if size.num_buffer_values else None,
            flops.forward or None,
            flops.backward or None,
            self._tensor_texts(block),
        )

    def _share(self, size: Size) -> str:
        if not size.num_parameters:
            return ""
        percent = 100 * size.num_parameters / self.summary.tree.size.num_parameters
        return f"{percent:.1f}" if percent >= 0.05 else "<0.1"

    def _num_active(self, names: list[str], size: Size) -> int | None:
        """In a mixture of experts, the parameters that are used for one token."""
        if self.summary.active is None or not size.num_parameters:
            return None
        return self.summary.active_of(names, size.num_parameters)

    def _output_text(self, names: list[str]) -> str:
        found = [self.summary.outputs[name] for name in names if name in self.summary.outputs]
        if not found:
            return ""
        text = output_text(found[0], dtype=self.dtype)
        return text if all(other == found[0] for other in found) else f"{text} (the first)"

    def _tensor_texts(self, node: ModuleNode) -> tuple[str, ...]:
        if node.shared_with is not None:
            return (f"same module as {node.shared_with}",)
        return tuple(map(self._tensor_text, node.tensors))

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


def _flops_text(count: int) -> str:
    return flops_text(count).removesuffix(operations_unit()).strip()


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
