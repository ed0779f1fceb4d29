"""A module as a tree of plain data: its tensors and their sizes, equal blocks folded into one.

Input: any module, fake or real. Output: a tree of frozen records. Invariant: every tensor is
counted once, where a walk in order of registration first meets it, so the root's size is that of
``module.parameters()`` and ``module.buffers()``. Called by: the user, and ``summary``; ``show``
draws the tree.

Folding is linear in the number of modules: the structure of a subtree is interned bottom-up as one
small integer, so comparing two blocks of any size is comparing two integers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torchfake._torch.distributed import device_of
from torchfake.inspect.describe.held_memory import held_bytes
from torchfake.inspect.describe.module_names import index_ranges, join_name
from torchfake.inspect.describe.tensor_specs import dtype_name


@dataclass(frozen=True)
class Size:
    """Sizes of the tensors of a subtree, every tensor counted once."""

    num_trainable: int = 0  # values in parameters that require grad
    num_frozen: int = 0  # values in the other parameters
    parameter_bytes: int = 0
    num_buffer_values: int = 0
    buffer_bytes: int = 0  # saved or not

    @property
    def num_parameters(self) -> int:
        """Values in all parameters."""
        return self.num_trainable + self.num_frozen

    def plus(self, other: Size, *, times: int = 1) -> Size:
        """The sum of this and `times` times `other`."""
        return Size(
            self.num_trainable + times * other.num_trainable,
            self.num_frozen + times * other.num_frozen,
            self.parameter_bytes + times * other.parameter_bytes,
            self.num_buffer_values + times * other.num_buffer_values,
            self.buffer_bytes + times * other.buffer_bytes,
        )

    def to_dict(self) -> dict[str, int]:
        """Counts and bytes by name, ready for JSON."""
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
    shape: tuple[int, ...] | None  # None: a lazy module's, until its first forward
    dtype: str  # without "torch."
    device: str
    num_values: int
    size_bytes: int
    trainable: bool
    persistent: bool  # in the state dict
    tied_to: str | None  # the full name under which it was counted, if not here

    @property
    def size(self) -> Size:
        """What it adds to the size of its module: nothing if it was counted elsewhere."""
        if self.tied_to is not None:
            return Size()
        if self.kind == "buffer":
            return Size(num_buffer_values=self.num_values, buffer_bytes=self.size_bytes)
        if self.trainable:
            return Size(num_trainable=self.num_values, parameter_bytes=self.size_bytes)
        return Size(num_frozen=self.num_values, parameter_bytes=self.size_bytes)

    @property
    def structure(self) -> Hashable:
        """What must be equal for two tensors at the same position in two blocks to fold."""
        untied = replace(self, tied_to=None) if self.tied_to else self
        return untied, self.tied_to is not None

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return {**self.__dict__, "shape": None if self.shape is None else list(self.shape)}


@dataclass(frozen=True)
class ModuleNode:
    """One module, or several siblings of the same structure (``repeat`` of them)."""

    name: str  # in its parent; "0-23" for several; "" for the root
    names: tuple[str, ...]  # of each module it stands for
    class_name: str
    tensors: tuple[TensorNode, ...]  # its own, not its children's
    children: tuple[ModuleNode, ...]
    size: Size  # of ONE of the `repeat` modules, its descendants included
    shared_with: str | None = None  # the full name under which this very module was read before
    is_container: bool = False  # a ModuleList or Sequential, no subclass: it only contains blocks

    @property
    def repeat(self) -> int:
        """How many sibling modules this node stands for."""
        return len(self.names)

    @property
    def total(self) -> Size:
        """The size of all `repeat` modules together."""
        return Size().plus(self.size, times=self.repeat)

    @property
    def folded_block(self) -> ModuleNode | None:
        """The only child of a container whose blocks are all equal: both are shown as one line."""
        if self.is_container and len(self.children) == 1 and self.children[0].repeat > 1:
            return self.children[0]
        return None

    def walk(self, *, times: int = 1) -> Iterator[tuple[ModuleNode, int]]:
        """Yield this node and its descendants, each with how many modules it stands for in all."""
        times *= self.repeat
        yield self, times
        for child in self.children:
            yield from child.walk(times=times)

    def to_dict(self, *, depth: int | None = None) -> dict[str, Any]:
        """The tree ready for JSON, `depth` levels deep; a folded container is no level."""
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
    """The module as a tree, tied tensors counted once, equal sibling blocks folded.

    Args:
        module: any module; fake, meta or real. It is not changed.

    Returns:
        The root, with ``name == ""``.

    >>> block = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
    >>> tree = read_module(nn.TransformerEncoder(block, 24, enable_nested_tensor=False))
    >>> folded = tree.children[0].children[0]
    >>> folded.repeat, folded.class_name, tree.size.num_parameters
    (24, 'TransformerEncoderLayer', 14400)
    """
    return _Reader().read(module, "", "")[0]


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


class _Reader:
    """One walk over one module; each node is returned with the integer of its structure."""

    def __init__(self) -> None:
        self.modules: dict[int, str] = {}  # id -> the full name it was first met under
        self.tensors: dict[int, str] = {}  # the same
        self.structures: dict[Hashable, int] = {}

    def read(self, module: nn.Module, name: str, path: str) -> tuple[ModuleNode, int]:
        """The node of a module, and the integer of its structure."""
        first = self.modules.setdefault(id(module), path)
        if first != path:
            return self.read_shared(module, name, first)
        tensors = tuple(self.read_tensors(module, path))
        # named_children() leaves out a module that is registered twice
        found = [
            self.read(child, key, join_name(path, key))
            for key, child in module._modules.items()
            if child is not None
        ]
        children = _fold_children(module, found)
        node = ModuleNode(
            name=name,
            names=(name,),
            class_name=type(module).__name__,
            tensors=tensors,
            children=children,
            size=_size(tensors, children),
            is_container=type(module) in (nn.ModuleList, nn.Sequential) and not tensors,
        )
        return node, self.intern(_structure(module, tensors, found))

    def read_shared(self, module: nn.Module, name: str, first: str) -> tuple[ModuleNode, int]:
        """The node of a module that was read before, under the name `first`: it has no size."""
        class_name, shared_with = type(module).__name__, first or "itself"
        node = ModuleNode(name, (name,), class_name, (), (), Size(), shared_with=shared_with)
        return node, self.intern(("shared", type(module)))

    def read_tensors(self, module: nn.Module, path: str) -> Iterator[TensorNode]:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield self.read_tensor(parameter, name, join_name(path, name), "parameter", True)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                saved = name not in module._non_persistent_buffers_set
                yield self.read_tensor(buffer, name, join_name(path, name), "buffer", saved)

    def read_tensor(
        self, tensor: torch.Tensor, name: str, path: str, kind: str, persistent: bool
    ) -> TensorNode:
        first = self.tensors.setdefault(id(tensor), path)
        lazy = is_lazy(tensor)
        num_values = 0 if lazy else tensor.numel()
        dtype = tensor.dtype
        return TensorNode(
            name=name,
            kind=kind,
            shape=None if lazy else tuple(tensor.shape),
            dtype=dtype_name(dtype),
            device=str(device_of(tensor)),
            num_values=num_values,
            size_bytes=0 if lazy else held_bytes(tensor),
            trainable=kind == "parameter" and tensor.requires_grad,
            persistent=persistent,
            tied_to=None if first == path else first,
        )

    def intern(self, structure: Hashable) -> int:
        return self.structures.setdefault(structure, len(self.structures))


def _structure(
    module: nn.Module, tensors: tuple[TensorNode, ...], children: list[tuple[ModuleNode, int]]
) -> Hashable:
    """What must be equal for two modules to fold."""
    return (
        type(module),
        tuple(tensor.structure for tensor in tensors),
        tuple((child.name, number) for child, number in children),
    )


def _size(tensors: tuple[TensorNode, ...], children: tuple[ModuleNode, ...]) -> Size:
    size = Size()
    for tensor in tensors:
        size = size.plus(tensor.size)
    for child in children:
        size = size.plus(child.size, times=child.repeat)
    return size


def _fold_children(
    parent: nn.Module, found: list[tuple[ModuleNode, int]]
) -> tuple[ModuleNode, ...]:
    """The children, equal ones folded: neighbours in a Sequential, at any index in a ModuleList.

    A Sequential runs in its order, so only neighbours may be shown as one. A ModuleList has no
    order of its own, and models that alternate two kinds of layers are common.
    """
    if not isinstance(parent, (nn.ModuleList, nn.Sequential)):
        return tuple(node for node, _ in found)
    groups: dict[Hashable, list[ModuleNode]] = {}
    run = 0  # of equal neighbours in a Sequential
    for i, (node, structure) in enumerate(found):
        if isinstance(parent, nn.Sequential):
            run += i > 0 and structure != found[i - 1][1]
        groups.setdefault((structure, run), []).append(node)
    return tuple(_fold(nodes) for nodes in groups.values())


def _fold(nodes: list[ModuleNode]) -> ModuleNode:
    names = tuple(node.name for node in nodes)
    return replace(nodes[0], name=index_ranges(names), names=names)
