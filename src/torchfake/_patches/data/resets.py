"""``reset_parameters`` of torch's layers: done at once where nobody looks.

Input: the originals. Output: versions that, of a layer like one that was reset before, do what that
one's reset did to its parameters. Invariant: what can be seen of a reset is what the original
leaves; where there is more to see or to do (what ``_patches/data/initializers`` names; another
class, parameters of other names, a function of ``torch.nn.init`` that somebody has replaced), the
original is called. Called by: ``_patches/install``.

Each constructor of a layer ends with one, and most layers of a model are like another one.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from torch import nn

from torchfake._cache import cache
from torchfake._core import modes
from torchfake._core.storage import ConstantFill
from torchfake._patches.data import effects, initializers
from torchfake._patches.patch import Patch
from torchfake._random import private_streams
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._torch import autograd

_thread = modes.thread
_is_unobserved = autograd.is_unobserved
_count_writes = autograd.count_writes
_init = vars(nn.init)

_MAX_KNOWN = 4096
_MAX_TRIES = 3


class _Layer(NamedTuple):
    """What the reset of a class of layers reads and calls."""

    classes: frozenset[type]  # exactly these
    parameters: tuple[str, ...]
    attributes: tuple[str, ...]
    functions: tuple[str, ...]  # of torch.nn.init


class _Write(NamedTuple):
    """What a reset does to one parameter."""

    num_writes: int
    value: ConstantFill | None
    num_bytes: int  # of its storage


class _Reset(NamedTuple):
    """What a reset does."""

    writes: tuple[_Write | None, ...]  # None for a parameter that is None
    draws: tuple[Any, ...]
    functions: dict[str, Any]  # of torch.nn.init, which did it


def _resetting(layer: _Layer, original: Any) -> Any:
    known: dict[Any, _Reset | int] = {}
    cache.learned.append(known)
    parameters_of = layer.parameters

    @functools.wraps(original)
    def replacement(self: Any) -> None:
        on = _thread.modes
        if not on or on[-1].mark or type(self) not in layer.classes or not _is_unobserved():
            return original(self)  # type: ignore[no-any-return]
        parameters = self._parameters
        tensors = [*parameters.values()]
        key: list[Any] = [type(self)]
        for tensor in tensors:
            if tensor is None:
                key.append(None)
            elif type(tensor) in FAKE_TYPES:
                key.append(tensor._fake_meta)
            else:
                return original(self)  # type: ignore[no-any-return]
        attributes = vars(self)
        key += [attributes.get(name) for name in layer.attributes]
        found = known.get((*key,), 0)
        if not isinstance(found, _Reset):
            return learn((*key,), found, self, tensors)
        if (
            on[-1].is_over
            or _thread.passes_over_together
            or tuple(parameters) != parameters_of
            or any(_init.get(name) is not f for name, f in found.functions.items())
            or not _can_be_written(tensors, found.writes)
        ):
            return original(self)  # type: ignore[no-any-return]
        for tensor, write in zip(tensors, found.writes, strict=True):
            if write is not None:
                _count_writes(tensor, write.num_writes)
                tensor._fake_storage.value = write.value
        for draw in found.draws:
            (_thread.draw_position or private_streams.position()).pass_over(draw)
        return None

    def learn(key: Any, num_tries: int, self: Any, tensors: list[Any]) -> None:
        """A first layer may be the only one: what a reset does is noted of the second one."""
        is_plain = 0 < num_tries <= _MAX_TRIES and tuple(self._parameters) == parameters_of
        functions = {name: _init.get(name) for name in layer.functions}
        made: _Reset | None = None
        if (
            is_plain
            and all(map(initializers.is_replacement, functions.values()))
            and all(t is None or effects.can_be_seen(t) for t in tensors)
        ):
            made = _observed(original, self, tensors, functions)
        else:
            original(self)
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[key] = made or num_tries + 1

    return replacement


def _can_be_written(tensors: list[Any], writes: tuple[_Write | None, ...]) -> bool:
    """Whether parameters have storages of their own, as large as those that were seen."""
    storages = set()
    for tensor, write in zip(tensors, writes, strict=True):
        if write is not None:
            storage = tensor._fake_storage
            if storage.deferred is not None or storage.num_bytes != write.num_bytes:
                return False
            if storage in storages or tensor.is_inference():
                return False
            storages.add(storage)
    return True


def _observed(
    original: Any, layer: Any, tensors: list[Any], functions: dict[str, Any]
) -> _Reset | None:
    """Reset a layer. What that did, if it does the same to each layer like this one."""
    stream = private_streams.position().stream()
    waiting, answers = stream.waiting(), modes.answerers()[0].answers
    before = [None if t is None else (t._version, t._fake_storage) for t in tensors]
    told, own = answers.times(), dict(vars(layer))
    original(layer)
    draws = private_streams.position().stream().added_to(waiting)
    writes = [b and _write_since(t, *b) for t, b in zip(tensors, before, strict=True)]
    if draws is None or answers.times() != told or vars(layer) != own or _UNKNOWN in writes:
        return None
    is_counted = all(type(draw) in effects.DRAW_TYPES for draw in draws)
    return _Reset((*writes,), draws, functions) if is_counted else None


_UNKNOWN: Any = object()
"""A write that leaves something else each time."""


def _write_since(tensor: Any, version: int, storage: Any) -> _Write:
    value = tensor._fake_storage.value
    is_kept = value is not None and not isinstance(value, ConstantFill)
    if tensor._fake_storage is not storage or is_kept or tensor._version == version:
        return _UNKNOWN  # type: ignore[no-any-return]
    return _Write(tensor._version - version, value, storage.num_bytes)


_DRAWING = ("kaiming_uniform_", "uniform_")
_FILLING = ("ones_", "zeros_")
_BOTH = ("weight", "bias")
_nn = nn.modules

_LAYERS = {
    nn.Linear: _Layer(
        frozenset({nn.Linear, _nn.linear.NonDynamicallyQuantizableLinear}), _BOTH, (), _DRAWING
    ),
    _nn.conv._ConvNd: _Layer(
        frozenset(
            {nn.Conv1d, nn.Conv2d, nn.Conv3d}
            | {nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d}
        ),
        _BOTH,
        (),
        _DRAWING,
    ),
    nn.LayerNorm: _Layer(frozenset({nn.LayerNorm}), _BOTH, ("elementwise_affine",), _FILLING),
    nn.GroupNorm: _Layer(frozenset({nn.GroupNorm}), _BOTH, ("affine",), _FILLING),
    nn.RMSNorm: _Layer(frozenset({nn.RMSNorm}), ("weight",), ("elementwise_affine",), ("ones_",)),
    nn.Embedding: _Layer(frozenset({nn.Embedding}), ("weight",), ("padding_idx",), ("normal_",)),
}

PATCHES = [
    Patch(cls, "reset_parameters", functools.partial(_resetting, layer))
    for cls, layer in _LAYERS.items()
]
