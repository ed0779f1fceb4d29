"""Numbers calls and functions so that equal numbers do the same.

Input: a recording. Output: a number for each call and function. Invariant: calls have equal numbers
if their modules have the same structure, names that differ only in list indices, and outputs of the
same specs.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import NamedTuple

from torch import nn

from torchfake.inspect.dataflow.recording import OUTSIDE, Recording


class Item(NamedTuple):
    """A call or a function of a recording, by its number there."""

    kind: str  # "call" or "function"
    number: int


def items_by_scope(recording: Recording) -> list[list[Item]]:
    """The calls and functions directly inside of each call, in order."""
    found: list[list[tuple[int, int, Item]]] = [[] for _ in recording.calls]
    for number, call in enumerate(recording.calls):
        if call.scope != OUTSIDE:
            found[call.scope].append((call.first, 0, Item("call", number)))
    for number, function in enumerate(recording.functions):
        if function.scope != OUTSIDE:
            found[function.scope].append((number, 1, Item("function", number)))
    return [[item for *_, item in sorted(items)] for items in found]


class Signatures:
    """The numbers of the calls and functions of a recording."""

    def __init__(self, recording: Recording, items: list[list[Item]]) -> None:
        self.recording = recording
        self._numbers: dict[Hashable, int] = {}
        self._of_call = [0] * len(recording.calls)
        self._of_module: dict[int, int] = {}
        for number in reversed(range(len(recording.calls))):  # inner calls first
            self._of_call[number] = self._intern(self._structure(number, items[number]))

    def of(self, item: Item) -> int:
        """The number of an item; items with equal numbers do the same."""
        if item.kind == "call":
            return self._of_call[item.number]
        function = self.recording.functions[item.number]
        return self._intern((function.name, tuple(function.made)))

    def key(self, item: Item) -> Hashable:
        """The name of an item without indices, by which items of two scopes correspond."""
        if item.kind == "call":
            return pattern_of(self.recording.calls[item.number].name)
        return "function", self.recording.functions[item.number].name

    def _structure(self, number: int, items: list[Item]) -> Hashable:
        call = self.recording.calls[number]
        return (
            self._tensors_of(call.module),
            pattern_of(call.name),
            tuple(call.outputs),
            tuple(self._of_call[item.number] for item in items if item.kind == "call"),
        )

    def _tensors_of(self, module: nn.Module) -> int:
        """The number of a module's structure: its tensors and submodules, including submodules that
        do not run. A layer with an unused cross-attention differs from one without.
        """
        if id(module) not in self._of_module:
            # provisional, for a module that contains itself
            self._of_module[id(module)] = self._intern((type(module),))
            tensors = [*module._parameters.items(), *module._buffers.items()]
            structure = (
                type(module),
                tuple((name, tuple(t.shape), t.dtype) for name, t in tensors if t is not None),
                tuple(
                    (n, self._tensors_of(c)) for n, c in module._modules.items() if c is not None
                ),
            )
            self._of_module[id(module)] = self._intern(structure)
        return self._of_module[id(module)]

    def _intern(self, structure: Hashable) -> int:
        return self._numbers.setdefault(structure, len(self._numbers))


def pattern_of(name: str) -> str:
    """A full name with ``#`` in place of indices.

    >>> pattern_of("layers.3.mlp2")
    'layers.#.mlp2'
    """
    return re.sub(r"(^|(?<=\.))\d+(?=\.|$)", "#", name)
