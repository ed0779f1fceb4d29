"""Which calls do the same: calls of modules of the same structure, with results of the same shapes.

Input: a recording. Output: a number for each call and function; equal numbers are alike.
Invariant: alike are only modules whose names differ in indices of a list alone.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import NamedTuple

from torch import nn

from torchfake.inspect.dataflow.recording import OUTSIDE, Recording


class Item(NamedTuple):
    """A call or a function, as a part of the call that it is in."""

    kind: str  # "call" or "function"
    number: int


def items_by_scope(recording: Recording) -> list[list[Item]]:
    """The calls and functions of each call, in order."""
    found: list[list[tuple[int, int, Item]]] = [[] for _ in recording.calls]
    for number, call in enumerate(recording.calls):
        if call.scope != OUTSIDE:
            found[call.scope].append((call.first, 0, Item("call", number)))
    for number, function in enumerate(recording.functions):
        if function.scope != OUTSIDE:
            found[function.scope].append((number, 1, Item("function", number)))
    return [[item for *_, item in sorted(items)] for items in found]


class Signatures:
    """Numbers of what calls and functions do."""

    def __init__(self, recording: Recording, items: list[list[Item]]) -> None:
        self.recording = recording
        self._numbers: dict[Hashable, int] = {}
        self._of_call = [0] * len(recording.calls)
        self._of_module: dict[int, int] = {}
        for number in reversed(range(len(recording.calls))):  # those inside first
            self._of_call[number] = self._intern(self._structure(number, items[number]))

    def of(self, item: Item) -> int:
        """The number of what it does."""
        if item.kind == "call":
            return self._of_call[item.number]
        function = self.recording.functions[item.number]
        return self._intern((function.name, tuple(function.made)))

    def key(self, item: Item) -> Hashable:
        """What it is called in its scope, indices left out."""
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
        """The number of what a module holds, with all modules in it: those, too, that do not run.

        A layer with a cross-attention that is not used is not like one without.
        """
        if id(module) not in self._of_module:
            self._of_module[id(module)] = self._intern((type(module),))  # if it contains itself
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
