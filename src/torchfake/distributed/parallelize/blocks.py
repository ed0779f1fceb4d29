"""The repeated blocks of a model, which FSDP2 gathers, and checkpointing recomputes, one by one.

Input: a module. Output: groups of :class:`Blocks`. Invariant: no block is inside another; the
module is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import nn

_PLACE = ("layer_idx", "layer_id", "layer_index")
"""Attributes in which transformers layers store their position: ignored when comparing layers."""

_LEAST_SHARE = 1000
"""A group with less than one part in this many of the parameters is left to the root."""


class Blocks(NamedTuple):
    """Modules of one class in one ``ModuleList`` or ``Sequential``."""

    path: str  # the full name of the list
    class_name: str
    keys: tuple[str, ...]  # names, in the list, of the members that are blocks
    is_whole: bool  # whether all members are blocks

    @property
    def names(self) -> list[str]:
        """The full names of the blocks."""
        return [f"{self.path}.{key}" if self.path else key for key in self.keys]


def repeated_blocks(module: nn.Module) -> list[Blocks]:
    """The repeated blocks of a model, in the order of its modules.

    In a transformers model, blocks are the members of lists whose class is in its
    ``_no_split_modules``. In other models, they are modules of equal class in a list, two or more
    of which have parameters of equal shapes; lists of unlike stages are searched recursively.
    """
    groups = _groups(module)
    named = {
        name for part in module.modules() for name in getattr(part, "_no_split_modules", None) or ()
    }
    chosen = [group for group in groups if group.class_name in named]
    return _outermost(chosen) if chosen else _by_shape(module, groups)


def kind_of_block(block: nn.Module) -> Any:
    """The structure of a block: classes, plain attributes, shapes and dtypes. Blocks that are alike
    differ in their values and their position only.
    """
    return tuple(
        (
            name,
            type(part).__name__,
            tuple(
                (key, value)
                for key, value in sorted(vars(part).items())
                if isinstance(value, (bool, int, float, str)) and key not in _PLACE
            ),
            tuple(
                (key, tuple(tensor.shape), tensor.dtype)
                for key, tensor in part.named_parameters(recurse=False)
            ),
        )
        for name, part in block.named_modules()
    )


def _groups(module: nn.Module) -> list[Blocks]:
    """The members of lists that have parameters, grouped by list and class."""
    found = []
    for path, part in module.named_modules():
        if not isinstance(part, (nn.ModuleList, nn.Sequential)):
            continue
        by_class: dict[str, list[str]] = {}
        for key, child in part.named_children():
            if next(child.parameters(), None) is not None:
                by_class.setdefault(type(child).__name__, []).append(key)
        for name, keys in by_class.items():
            found.append(Blocks(path, name, tuple(keys), len(keys) == len(part)))
    return found


def _by_shape(module: nn.Module, groups: list[Blocks]) -> list[Blocks]:
    total = _num_values([module])
    groups = [
        group
        for group in groups
        if len(group.keys) > 1
        and _num_values(map(module.get_submodule, group.names)) * _LEAST_SHARE >= total
    ]
    unlike = [group for group in groups if not _some_are_alike(module, group)]
    with_inner = {group for group in unlike if any(_lies_in(g, group) for g in groups)}
    return _outermost([group for group in groups if group not in with_inner])


def _some_are_alike(module: nn.Module, group: Blocks) -> bool:
    """Whether any two members of a group have parameters of equal names and shapes."""
    shapes = [
        tuple((key, tuple(p.shape)) for key, p in module.get_submodule(name).named_parameters())
        for name in group.names
    ]
    return len(set(shapes)) < len(shapes)


def _outermost(groups: list[Blocks]) -> list[Blocks]:
    return [group for group in groups if not any(_lies_in(group, other) for other in groups)]


def _lies_in(group: Blocks, other: Blocks) -> bool:
    """Whether a group's list is a member of another group, or inside such a member."""
    path = f"{group.path}."
    return any(path.startswith(f"{name}.") for name in other.names)


def _num_values(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())
