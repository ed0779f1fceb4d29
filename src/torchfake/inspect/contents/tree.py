"""A module as a tree of plain data: its tensors and their sizes, identical blocks folded into one.

Input: any module, fake or real. Output: a tree of frozen records. Invariant: every tensor is
counted once, where a walk in order of registration first meets it, so the root's size is that of
``module.parameters()`` and ``module.buffers()``.

Folding is linear in the number of modules: the structure of each subtree is interned bottom-up as
an integer (hash consing), so two blocks of any size are compared by comparing two integers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchfake._torch.distributed.dtensors import device_of
from torchfake.inspect.records.module_names import index_ranges, join_name
from torchfake.inspect.records.tensor_specs import dtype_name
from torchfake.observe import FAKE_TYPES, held_bytes, metadata_of


@dataclass(frozen=True)
class Size:
    """Sizes of the tensors of a subtree, every tensor counted once."""

    num_trainable: int = 0  # values in parameters that require grad
    num_frozen: int = 0  # values in the other parameters
    parameter_bytes: int = 0
    num_buffer_values: int = 0
    buffer_bytes: int = 0  # of persistent and non-persistent buffers

    @property
    def num_parameters(self) -> int:
        """Values in all parameters."""
        return self.num_trainable + self.num_frozen

    def plus(self, other: Size, *, times: int = 1) -> Size:
        """The sum of this size and `times` times `other`."""
        return Size(
            self.num_trainable + times * other.num_trainable,
            self.num_frozen + times * other.num_frozen,
            self.parameter_bytes + times * other.parameter_bytes,
            self.num_buffer_values + times * other.num_buffer_values,
            self.buffer_bytes + times * other.buffer_bytes,
        )

    def to_dict(self) -> dict[str, int]:
        """Counts and bytes by name, as a dict for JSON."""
        return {
            "num_parameters": self.num_parameters,
            "num_trainable": self.num_trainable,
            "num_frozen": self.num_frozen,
            "parameter_bytes": self.parameter_bytes,
            "num_buffer_values": self.num_buffer_values,
            "buffer_bytes": self.buffer_bytes,
        }


@dataclass(frozen=True)
class TensorNode:
    """One parameter or buffer."""

    name: str
    kind: str  # "parameter" or "buffer"
    shape: tuple[int, ...] | None  # None: in a lazy module, before its first forward
    dtype: str  # without "torch."
    device: str
    num_values: int
    size_bytes: int
    trainable: bool
    persistent: bool  # whether the state dict has it
    tied_to: str | None  # the full name under which the tensor is counted, if another one

    @property
    def size(self) -> Size:
        """The tensor's contribution to the size of its module; zero if it is counted elsewhere."""
        if self.tied_to is not None:
            return Size()
        if self.kind == "buffer":
            return Size(num_buffer_values=self.num_values, buffer_bytes=self.size_bytes)
        if self.trainable:
            return Size(num_trainable=self.num_values, parameter_bytes=self.size_bytes)
        return Size(num_frozen=self.num_values, parameter_bytes=self.size_bytes)

    @property
    def structure(self) -> Hashable:
        """The properties that must be equal in corresponding tensors of two blocks to be folded."""
        untied = replace(self, tied_to=None) if self.tied_to else self
        return untied, self.tied_to is not None

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        return {**self.__dict__, "shape": None if self.shape is None else list(self.shape)}


@dataclass(frozen=True)
class ModuleNode:
    """One module, or several siblings of the same structure (``repeat`` of them)."""

    name: str  # in its parent; "0-23" for several; "" for the root
    names: tuple[str, ...]  # the name of each module that the node stands for
    class_name: str
    tensors: tuple[TensorNode, ...]  # the module's own, without its children's
    children: tuple[ModuleNode, ...]
    size: Size  # of ONE of the `repeat` modules, its descendants included
    shared_with: str | None = None  # the full name under which the same object was read before
    is_container: bool = False  # a ModuleList or Sequential (no subclass) without own tensors

    @property
    def repeat(self) -> int:
        """The number of sibling modules that the node stands for."""
        return len(self.names)

    @property
    def total(self) -> Size:
        """The size of all `repeat` modules together."""
        return Size().plus(self.size, times=self.repeat)

    @property
    def folded_block(self) -> ModuleNode | None:
        """The only child of a container of identical blocks, shown in the container's line."""
        if self.is_container and len(self.children) == 1 and self.children[0].repeat > 1:
            return self.children[0]
        return None

    def walk(self, *, times: int = 1) -> Iterator[tuple[ModuleNode, int]]:
        """Yield the node and its descendants, each with the number of modules it stands for."""
        times *= self.repeat
        yield self, times
        for child in self.children:
            yield from child.walk(times=times)

    def to_dict(self, *, depth: int | None = None) -> dict[str, Any]:
        """The tree as a dict for JSON, `depth` levels deep; folded containers do not count."""
        child_depth = depth if depth is None or self.folded_block else depth - 1
        children = () if depth == 0 and not self.folded_block else self.children
        return {
            "name": self.name,
            "class_name": self.class_name,
            "repeat": self.repeat,
            "names": list(self.names),
            "shared_with": self.shared_with,
            "size": self.size.to_dict(),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "children": [child.to_dict(depth=child_depth) for child in children],
        }


def read_module(module: nn.Module) -> ModuleNode:
    """Return the module as a tree: tied tensors are counted once, identical siblings are folded.

    Args:
        module: any module: fake, meta or real. It is not changed.

    Returns:
        The root node, with ``name == ""``.

    >>> block = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
    >>> tree = read_module(nn.TransformerEncoder(block, 24, enable_nested_tensor=False))
    >>> folded = tree.children[0].children[0]
    >>> folded.repeat, folded.class_name, tree.size.num_parameters
    (24, 'TransformerEncoderLayer', 14400)
    """
    return _Reader().read(module, "", "").node


def count_by(root: ModuleNode, field: str) -> dict[str, tuple[int, int]]:
    """Values and bytes of all tensors, by ``dtype`` or ``device``, the largest first."""
    counts: dict[str, tuple[int, int]] = {}
    for node, times in root.walk():
        for tensor in node.tensors:
            if tensor.tied_to is None:
                key = getattr(tensor, field)
                values, size = counts.get(key, (0, 0))
                counts[key] = values + times * tensor.num_values, size + times * tensor.size_bytes
    return dict(sorted(counts.items(), key=lambda item: -item[1][1]))


class _Read(NamedTuple):
    """The result of reading a module."""

    node: ModuleNode  # of the module, or of an identical one with another name
    structure: int  # equal if and only if two modules may be folded
    is_unshared: bool  # no tensor or module in it was read before


class _Reader:
    """Walks a module. Identical modules share one node, since a large model repeats few of them."""

    def __init__(self) -> None:
        self.modules: dict[int, str] = {}  # the first full name of each module, by id
        self.tensors: dict[int, tuple[str, str]] = {}  # first module and name of each, by id
        self.nodes_of_tensors: dict[Hashable, TensorNode] = {}
        self.structures: dict[Hashable, int] = {}
        self.nodes: dict[int, ModuleNode] = {}  # of unshared modules, by structure

    def read(self, module: nn.Module, name: str, path: str) -> _Read:
        """Read a module: its node, and the integer of its structure."""
        first = self.modules.setdefault(id(module), path)
        if first != path:
            return self.read_shared(module, name, first)
        tensors = [*self.read_tensors(module, path)]
        # named_children() leaves out a module that is registered twice
        children = {
            key: self.read(child, key, join_name(path, key))
            for key, child in module._modules.items()
            if child is not None
        }
        structure = self.intern(_structure(module, tensors, children))
        is_unshared = all(tensor.tied_to is None for tensor in tensors)
        is_unshared = is_unshared and all(child.is_unshared for child in children.values())
        node = self.nodes.get(structure) if is_unshared else None
        if node is None:
            node = _node(module, name, tuple(tensors), _fold_children(module, children))
            if is_unshared:
                self.nodes[structure] = node
        return _Read(node, structure, is_unshared)

    def read_shared(self, module: nn.Module, name: str, first: str) -> _Read:
        """The node of a module that was read before, under the name `first`: its size is zero."""
        class_name, shared_with = type(module).__name__, first or "itself"
        node = ModuleNode(name, (name,), class_name, (), (), Size(), shared_with=shared_with)
        return _Read(node, self.intern(("shared", type(module))), False)

    def read_tensors(self, module: nn.Module, path: str) -> Iterator[TensorNode]:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield self.read_tensor(parameter, name, path, "parameter", True)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                saved = name not in module._non_persistent_buffers_set
                yield self.read_tensor(buffer, name, path, "buffer", saved)

    def read_tensor(
        self, tensor: torch.Tensor, name: str, path: str, kind: str, persistent: bool
    ) -> TensorNode:
        first = self.tensors.setdefault(id(tensor), (path, name))
        trainable = kind == "parameter" and tensor.requires_grad
        if type(tensor) not in FAKE_TYPES or first != (path, name):
            tied_to = None if first == (path, name) else join_name(*first)
            return _tensor_node(tensor, name, kind, trainable, persistent, tied_to)
        # cached, because attributes of a tensor subclass are slow to read
        key = metadata_of(tensor), name, kind, trainable, persistent  # type: ignore[arg-type]
        node = self.nodes_of_tensors.get(key)
        if node is None:
            node = _tensor_node(tensor, name, kind, trainable, persistent, None)
            node = self.nodes_of_tensors[key] = node
        return node

    def intern(self, structure: Hashable) -> int:
        return self.structures.setdefault(structure, len(self.structures))


def _tensor_node(
    tensor: torch.Tensor,
    name: str,
    kind: str,
    trainable: bool,
    persistent: bool,
    tied_to: str | None,
) -> TensorNode:
    lazy = is_lazy(tensor)
    return TensorNode(
        name=name,
        kind=kind,
        shape=None if lazy else tuple(tensor.shape),
        dtype=dtype_name(tensor.dtype),
        device=str(device_of(tensor)),
        num_values=0 if lazy else tensor.numel(),
        size_bytes=0 if lazy else held_bytes(tensor),
        trainable=trainable,
        persistent=persistent,
        tied_to=tied_to,
    )


def _node(
    module: nn.Module,
    name: str,
    tensors: tuple[TensorNode, ...],
    children: tuple[ModuleNode, ...],
) -> ModuleNode:
    return ModuleNode(
        name=name,
        names=(name,),
        class_name=type(module).__name__,
        tensors=tensors,
        children=children,
        size=_size(tensors, children),
        is_container=type(module) in (nn.ModuleList, nn.Sequential) and not tensors,
    )


def _structure(
    module: nn.Module, tensors: list[TensorNode], children: dict[str, _Read]
) -> Hashable:
    """The properties that must be equal for two modules to be folded."""
    return (
        type(module),
        tuple([tensor.structure for tensor in tensors]),
        tuple([(name, child.structure) for name, child in children.items()]),
    )


def _size(tensors: tuple[TensorNode, ...], children: tuple[ModuleNode, ...]) -> Size:
    size = Size()
    for tensor in tensors:
        size = size.plus(tensor.size)
    for child in children:
        size = size.plus(child.size, times=child.repeat)
    return size


def _fold_children(parent: nn.Module, children: dict[str, _Read]) -> tuple[ModuleNode, ...]:
    """The children, identical ones folded: neighbours in a Sequential, any in a ModuleList.

    A Sequential runs in its order, so only neighbours may be folded. A ModuleList has no order of
    execution, and models that alternate two kinds of layers are common.
    """
    if not isinstance(parent, (nn.ModuleList, nn.Sequential)):
        return tuple(_named(child.node, (name,)) for name, child in children.items())
    groups: dict[Hashable, tuple[ModuleNode, list[str]]] = {}
    run, last = 0, -1  # number and structure of the run of identical neighbours in a Sequential
    for name, (node, structure, _) in children.items():
        if isinstance(parent, nn.Sequential):
            run += last not in (-1, structure)
            last = structure
        groups.setdefault((structure, run), (node, []))[1].append(name)
    return tuple(_named(node, tuple(names)) for node, names in groups.values())


def _named(node: ModuleNode, names: tuple[str, ...]) -> ModuleNode:
    return node if node.names == names else replace(node, name=index_ranges(names), names=names)
