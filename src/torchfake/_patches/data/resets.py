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
from torchfake._recording import fills
from torchfake._recording.fills import Fill
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._tensor.fake_tensor import FakeTensor
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
    buffers: tuple[str, ...] = ()  # those that it writes, before the parameters


class _Write(NamedTuple):
    """What a reset does to one parameter."""

    num_writes: int
    value: ConstantFill | None
    num_bytes: int  # of its storage


class _Reset(NamedTuple):
    """What a reset does to plain fakes."""

    writes: tuple[_Write, ...]  # to each parameter
    draws: tuple[Any, ...]

    def repeat(self, tensors: list[Any]) -> bool:
        """Do the same to the parameters of another layer; or nothing, if they are not as these."""
        if _thread.passes_over_together or not self._fits(tensors):
            return False
        for tensor, write in zip(tensors, self.writes, strict=True):
            _count_writes(tensor, write.num_writes)
            tensor._fake_storage.value = write.value
        for draw in self.draws:
            (_thread.draw_position or private_streams.position()).pass_over(draw)
        return True

    def _fits(self, tensors: list[Any]) -> bool:
        """Whether they have storages of their own, as large as those that were seen."""
        storages = [tensor._fake_storage for tensor in tensors]
        if len(storages) > 1 and len({*storages}) != len(storages):
            return False
        for tensor, storage, write in zip(tensors, storages, self.writes, strict=True):
            if storage.deferred is not None or storage.num_bytes != write.num_bytes:
                return False
            if tensor.is_inference():
                return False
        return True


class _Recorded(NamedTuple):
    """What a reset records of deferred fakes."""

    fills: tuple[Fill, ...]  # of each parameter

    def repeat(self, tensors: list[Any]) -> bool:
        return fills.record_all_again(self.fills, tensors)


class _Known(NamedTuple):
    """What is known of the resets of layers that are alike."""

    effect: _Reset | _Recorded
    functions: tuple[tuple[str, Any], ...]  # of torch.nn.init, which did it


def _resetting(layer: _Layer, original: Any) -> Any:
    known: dict[Any, _Known | int] = {}
    cache.learned.append(known)

    @functools.wraps(original)
    def replacement(self: Any) -> None:
        on = _thread.modes
        if not on or type(self) not in layer.classes or on[-1].is_over or not _is_unobserved():
            return original(self)  # type: ignore[no-any-return]
        tensors: list[Any] = []
        parts: list[Any] = [type(self), on[-1].mark]
        if layer.buffers:
            for name, tensor in self._buffers.items():
                if tensor is not None:
                    if type(tensor) is not FakeTensor or tensor.requires_grad:
                        return original(self)  # type: ignore[no-any-return]
                    tensors.append(tensor)
                    parts += (name, tensor._fake_meta)
        for name, tensor in self._parameters.items():
            if tensor is not None:
                if type(tensor) not in FAKE_TYPES:
                    return original(self)  # type: ignore[no-any-return]
                tensors.append(tensor)
                parts += (name, tensor._fake_meta)
        if layer.attributes:
            parts += [vars(self).get(name) for name in layer.attributes]
        key = tuple(parts)
        found = known.get(key, 0)
        if isinstance(found, _Known):
            for function_name, function in found.functions:
                if _init.get(function_name) is not function:
                    return original(self)  # type: ignore[no-any-return]
            if not found.effect.repeat(tensors):
                original(self)
            return None
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[key] = _learn(layer, original, found, self, tensors) or found + 1
        return None

    return replacement


def _learn(
    layer: _Layer, original: Any, num_tries: int, self: Any, tensors: list[Any]
) -> _Known | None:
    """Reset a layer. A first one may be the only one: what is done is noted of the second one."""
    functions = tuple((name, _init.get(name)) for name in layer.functions)
    effect: _Reset | _Recorded | None = None
    is_plain = {*self._parameters} == {*layer.parameters} and {*self._buffers} == {*layer.buffers}
    is_plain = is_plain and 0 < num_tries <= _MAX_TRIES
    if not is_plain or not all(initializers.is_replacement(f) for _, f in functions):
        original(self)
    elif all(map(effects.can_be_seen, tensors)):
        effect = _observed(original, self, tensors)
    elif all(map(effects.can_be_recorded_again, tensors)):
        effect = _observed_record(original, self, tensors)
    else:
        original(self)
    return None if effect is None else _Known(effect, functions)


def _observed(original: Any, layer: Any, tensors: list[Any]) -> _Reset | None:
    """Reset a layer. What that did, if it does the same to each layer like this one."""
    stream = private_streams.position().stream()
    waiting, answers = stream.waiting(), modes.answerers()[0].answers
    before = [(tensor._version, tensor._fake_storage) for tensor in tensors]
    told, own = answers.times(), dict(vars(layer))
    original(layer)
    draws = private_streams.position().stream().added_to(waiting)
    writes = [_write_since(t, *b) for t, b in zip(tensors, before, strict=True)]
    if draws is None or answers.times() != told or vars(layer) != own or None in writes:
        return None
    is_counted = all(type(draw) in effects.DRAW_TYPES for draw in draws)
    return _Reset(tuple(writes), draws) if is_counted else None  # type: ignore[arg-type]


def _write_since(tensor: Any, version: int, storage: Any) -> _Write | None:
    """What has been written to a tensor; None if that is something else each time, or nothing."""
    value = tensor._fake_storage.value
    is_kept = value is not None and not isinstance(value, ConstantFill)
    if tensor._fake_storage is not storage or is_kept or tensor._version == version:
        return None
    return _Write(tensor._version - version, value, storage.num_bytes)


def _observed_record(original: Any, layer: Any, tensors: list[Any]) -> _Recorded | None:
    attempt, own = fills.Attempt(*tensors), dict(vars(layer))
    original(layer)
    seen = attempt.fills()
    return _Recorded(seen) if seen and vars(layer) == own else None


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
    _nn.batchnorm._NormBase: _Layer(
        frozenset(
            {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm}
            | {nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d}
        ),
        _BOTH,
        ("affine", "track_running_stats"),
        _FILLING,
        ("running_mean", "running_var", "num_batches_tracked"),
    ),
    nn.Embedding: _Layer(frozenset({nn.Embedding}), ("weight",), ("padding_idx",), ("normal_",)),
}

PATCHES = [
    Patch(cls, "reset_parameters", functools.partial(_resetting, layer))
    for cls, layer in _LAYERS.items()
]
