"""A summary as the rows of a tree, in columns.

Input: a Summary. Output: blocks of rows. Invariant: there is one row for each module or group of
identical blocks, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torchfake.inspect.contents.tree import ModuleNode, Size, TensorNode
from torchfake.inspect.records.module_names import join_name
from torchfake.inspect.records.tensor_specs import TensorSpec
from torchfake.inspect.records.units import bytes_text, flops_text, operations_unit
from torchfake.inspect.show.rows import SHAPE, Block, Column, table
from torchfake.inspect.summary import Summary


class _Line(NamedTuple):
    """What a row is about: a module, or a group of identical blocks."""

    summary: Summary
    node: ModuleNode
    level: int
    block: ModuleNode  # of a group, the block that is shown
    names: list[str]  # of the block, and of those that are identical

    @property
    def size(self) -> Size:
        return self.node.total

    @property
    def flops(self) -> Any:
        return self.summary.flops_of(self.names)


def tree_blocks(summary: Summary, depth: int | None = None) -> list[Block]:
    """The tree of a summary, down to `depth` levels below the root, and how to read it."""
    depth = summary.depth if depth is None else depth
    lines = [*_lines_of(summary, summary.tree, 0, "", depth)]
    unit = operations_unit()
    columns = (
        Column("module", _label),
        Column("output", _output, need=7, under="gives ", emphasis=SHAPE),
        Column("parameters", lambda line: line.size.num_parameters or None, "{:,}".format),
        Column("% of total", _share, str, need=2),
        Column("active", _num_active, "{:,}".format, need=3),
        Column("bytes", lambda line: line.size.parameter_bytes or None, bytes_text),
        Column("buffer bytes", lambda line: line.size.buffer_bytes or None, bytes_text, need=6),
        Column(f"{unit} forward", lambda line: line.flops.forward or None, _flops_text, need=4),
        Column(f"{unit} backward", lambda line: line.flops.backward or None, _flops_text, need=5),
        Column("tensors", _tensors, need=8, under="", emphasis=SHAPE),
    )
    note = Block(note='"n x" rows total n identical blocks; the rows beneath show one of them.')
    has_folded = any(line.node.repeat > 1 or line.block is not line.node for line in lines)
    return [table(lines, columns), *[note] * has_folded]


def _lines_of(
    summary: Summary, node: ModuleNode, level: int, path: str, depth: int | None
) -> Iterator[_Line]:
    block, names = node, [join_name(path, name) for name in node.names]
    while block.folded_block is not None:
        block = block.folded_block
        names = [join_name(name, inner) for name in names for inner in block.names]
    yield _Line(summary, node, level, block, names)
    if depth is None or level < depth:
        for child in block.children:
            yield from _lines_of(summary, child, level + 1, names[0], depth)


def _label(line: _Line) -> str:
    return f"({line.node.name}) " * bool(line.node.name) + _class_text(line.node)


def _share(line: _Line) -> str:
    if not line.size.num_parameters:
        return ""
    percent = 100 * line.size.num_parameters / line.summary.tree.size.num_parameters
    return f"{percent:.1f}" if percent >= 0.05 else "<0.1"


def _num_active(line: _Line) -> int | None:
    """In a mixture of experts, the parameters that are used for one token."""
    if line.summary.active is None or not line.size.num_parameters:
        return None
    return line.summary.active_of(line.names, line.size.num_parameters)


def _output(line: _Line) -> str:
    outputs = line.summary.outputs
    found = [outputs[name] for name in line.names if name in outputs]
    text = output_text(found[0], dtype=_most(line.summary.by_dtype)) if found else ""
    return text if all(other == found[0] for other in found) else f"{text} (the first)"


def _tensors(line: _Line) -> tuple[str, ...]:
    if line.block.shared_with is not None:
        return (f"same module as {line.block.shared_with}",)
    return tuple(_tensor_text(tensor, line.summary) for tensor in line.block.tensors)


def _tensor_text(tensor: TensorNode, summary: Summary) -> str:
    """The tensor without what nearly all have: the most common dtype and device."""
    if tensor.tied_to is not None:
        return f"{tensor.name} tied to {tensor.tied_to}"
    shape = "lazy" if tensor.shape is None else f"[{', '.join(map(str, tensor.shape))}]"
    parts = [tensor.name, shape]
    parts += [tensor.dtype] * (tensor.dtype != _most(summary.by_dtype))
    parts += [f"on {tensor.device}"] * (tensor.device != _most(summary.by_device))
    if tensor.kind == "buffer":
        parts.append("buffer" if tensor.persistent else "non-persistent buffer")
    elif not tensor.trainable and summary.tree.size.num_trainable:
        parts.append("frozen")
    return " ".join(parts)


def _most(sizes: Mapping[str, Any]) -> str:
    return next(iter(sizes), "")


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
