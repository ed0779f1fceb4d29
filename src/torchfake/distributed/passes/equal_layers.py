"""Leaves out layers that do what an earlier layer does, and counts them again afterwards.

Input: a model. Output: the model with the first layers of each list alone, and the
:class:`EqualLayers` that say which of them each layer of the whole model is like. Invariant: layers
are alike if their classes, plain attributes, and parameters' shapes and dtypes are.

Lists are cut at the end only: many models look up what belongs to a layer by its position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from torchfake.distributed.parallelize.blocks import kind_of_block, repeated_blocks

_MORE = 2
"""Layers that are run beside the first of each kind: at the peak of memory of a typical layer, the
layer before has left its output."""


@dataclass(frozen=True)
class EqualLayers:
    """The lists of layers of a model, by their full names: for each layer, the number of the first
    layer of the list that is like it.
    """

    like: dict[str, tuple[int, ...]]

    def layer_of(self, name: str) -> tuple[str, int] | None:
        """The list and the number of the layer that a module or parameter of this name is or lies
        in; None if it lies in none.
        """
        for path in self.like:
            if found := re.match(rf"{re.escape(path)}\.(\d+)(\.|$)", name):
                return path, int(found[1])
        return None


def cut(module: nn.Module) -> EqualLayers:
    """Leave out the last layers of each list of layers in `module` that are like earlier ones."""
    like = {}
    for path, layers in _lists(module):
        kinds = [kind_of_block(layer) for layer in layers]
        like[path] = tuple(kinds.index(kind) for kind in kinds)
        del layers[max(like[path]) + 1 + _MORE :]
    return EqualLayers(like)


def uncut(module: nn.Module) -> EqualLayers:
    """All layers of each list in `module`, each like itself."""
    return EqualLayers({path: tuple(range(len(layers))) for path, layers in _lists(module)})


def _lists(module: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """The lists of layers, with their full names."""
    for path in dict.fromkeys(group.path for group in repeated_blocks(module)):
        layers = module.get_submodule(path) if path else module
        if isinstance(layers, nn.ModuleList):
            yield path, layers
