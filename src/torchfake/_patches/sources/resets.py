"""``reset_parameters`` of torch's layers: done at once where nobody looks.

Input: the originals. Output: versions that, of a layer like one that was reset before, do what that
one's reset did to its parameters. Invariant: what can be seen of a reset is what the original
leaves; where there is more to see or to do (what ``_patches/sources/initializers`` names; another
class, parameters of other names, a function of ``torch.nn.init`` that somebody has replaced), the
original is called.

Each constructor of a layer ends with one, and most layers of a model are like another one.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

from torch import nn

from torchfake._cache import cache
from torchfake._core import modes
from torchfake._core.metadata import Metadata
from torchfake._patches.patch import Patch, is_torchs
from torchfake._patches.sources import effects, initializers
from torchfake._patches.sources.callees import (
    METHODS,
    NAMESPACES,
    Callees,
    are_as_before,
    are_in,
    globals_of,
    in_namespace,
    methods_of_tensors,
    of_class,
)
from torchfake._patches.sources.effects import Kept
from torchfake._patches.sources.reset_effects import (
    Family,
    Recorded,
    Reset,
    observed,
    observed_record,
)
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd

_thread = modes.thread
_is_unobserved = autograd.is_unobserved
_init = vars(nn.init)

_MAX_KNOWN = 4096
_MAX_TRIES = 3


class _Layer(NamedTuple):
    """What the reset of a class of layers reads and calls."""

    classes: frozenset[type]  # exactly these
    parameters: tuple[str, ...]
    attributes: tuple[str, ...]
    functions: tuple[str, ...]  # of torch.nn.init: initialisers, and what they call
    buffers: tuple[str, ...] = ()  # those that it writes, before the parameters
    methods: tuple[str, ...] = ()  # of its own, that it calls

    @property
    def names(self) -> frozenset[str]:
        """What the layer may not have as a plain attribute, in the place of these."""
        return frozenset((*self.parameters, *self.buffers, *self.methods))


class Known(NamedTuple):
    """What is known of the resets of layers that are alike."""

    effect: Reset | Recorded
    callees: tuple[Callees, ...]  # of the reset


_known_of: dict[type, dict[Any, Known | int]] = {}
"""What is known of the resets that each class defines."""


def known_of(module: Any) -> Known | None:
    """What is known of the reset of a layer that has just been done."""
    owner = owner_of(type(module))
    parts = _parts_of_key(LAYERS[owner], module, [])
    found = None if parts is None else _known_of[owner].get((_thread.modes[-1].mark, *parts))
    return found if isinstance(found, Known) else None


def owner_of(cls: type) -> type:
    """The class of :data:`LAYERS` that layers of this class inherit their functions from."""
    return next(each for each in cls.__mro__ if each in LAYERS)


def is_replacement(function: Any) -> bool:
    """Whether this is the ``reset_parameters`` of a layer as it is in a mode."""
    return getattr(function, "__code__", None) is _CODE_OF_REPLACEMENTS


def _resetting(owner: type, layer: _Layer, original: Any) -> Any:
    if not is_torchs(original, owner, "reset_parameters"):
        return original  # somebody has replaced it
    names = layer.names
    known: dict[Any, Known | int] = {}
    families: dict[Any, Family] = {}
    cache.learned += (known, families)
    _known_of[owner] = known

    @functools.wraps(original)
    def replacement(self: Any) -> None:
        on = _thread.modes
        if not on or type(self) not in layer.classes or on[-1].is_over or not _is_unobserved():
            return original(self)  # type: ignore[no-any-return]
        if not vars(self).keys().isdisjoint(names):
            return original(self)  # type: ignore[no-any-return]
        tensors: list[Any] = []
        parts = _parts_of_key(layer, self, tensors)
        if parts is None:
            return original(self)  # type: ignore[no-any-return]
        key = (on[-1].mark, *parts)
        try:
            found = known.get(key, 0)
        except Exception:  # an attribute that has no hash
            return original(self)  # type: ignore[no-any-return]
        if isinstance(found, Known):
            if not (are_as_before(found.callees) and found.effect.repeat(tensors)):
                original(self)
            return None
        learned = _learn(layer, original, families, parts, found, self, tensors)
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[key] = learned or found + 1
        return None

    return replacement


def _parts_of_key(layer: _Layer, module: Any, tensors: list[Any]) -> list[Any] | None:
    """What layers have in common whose resets do the same, and their tensors, which are added to
    the list; None if some are not fakes that nothing is computed with.
    """
    parts = [type(module), *[vars(module).get(name) for name in layer.attributes]]
    if layer.buffers:
        for name, tensor in module._buffers.items():
            if tensor is None:
                parts += (name, None)
            elif type(tensor) is FakeTensor and not tensor.requires_grad:
                tensors.append(tensor)
                parts += (name, tensor._fake_meta)
            else:
                return None
    for name, tensor in module._parameters.items():
        if tensor is None:
            parts += (name, None)
        elif type(tensor) in FAKE_TYPES:
            tensors.append(tensor)
            parts += (name, tensor._fake_meta)
        else:
            return None
    return parts


def _learn(
    layer: _Layer,
    original: Any,
    families: dict[Any, Family],
    parts: list[Any],
    num_tries: int,
    self: Any,
    tensors: list[Any],
) -> Known | None:
    """Reset a layer, and note what that did, if it does not follow from layers of other sizes. What
    is recorded is noted of the second one that is like it: a first one may be the only one.
    """
    effect: Reset | Recorded | None = None
    is_recorded = num_tries > 0 and _thread.modes[-1].mark != 0
    are_apart = len({tensor._fake_storage for tensor in tensors}) == len(tensors)
    if num_tries > _MAX_TRIES or not are_apart or not _is_plain(layer, self):
        original(self)
    elif all(map(effects.can_be_seen, tensors)):
        key = _family_key(layer, parts)
        family = None if num_tries or key is None else families.get(key)
        effect = None if family is None else family.reset_of(tensors)
        if effect is None or not effect.repeat(tensors):
            effect = observed(original, self, tensors)
            if effect is not None and key is not None and Kept not in map(type, effect.draws):
                _note(families, key, effect, tensors)
    elif is_recorded and all(map(effects.can_be_recorded_again, tensors)):
        effect = observed_record(original, self, tensors)
    else:
        original(self)
    if effect is None:
        return None
    owner = owner_of(type(self))
    callees = (
        *in_namespace(layer.functions, _init),
        *methods_of_tensors(),
        *of_class((*layer.methods, *_OF_ALL), type(self)),
        *in_namespace(GLOBALS[owner], vars(sys.modules[owner.__module__])),
    )
    return Known(effect, callees)


def _is_plain(layer: _Layer, module: Any) -> bool:
    """Whether a reset reads and calls what torch's own does."""
    if not all(names.isdisjoint(METHODS) for names in NAMESPACES):
        return False
    cls = type(module)
    reads: Any = cls.__getattribute__
    if cls.__mro__ != _BASES[cls] or reads is not object.__getattribute__:
        return False
    if not is_torchs(cls.__getattr__, nn.Module, "__getattr__"):
        return False
    for name in layer.functions:
        function = _init.get(name)
        if not (initializers.is_replacement(function) or is_torchs(function, nn.init, name)):
            return False
    for name in layer.methods:
        owners = (base for base in cls.__mro__ if name in vars(base))
        if not is_torchs(getattr(cls, name, None), next(owners, cls), name):
            return False
    owner = owner_of(cls)
    read = {name: value for name, value in GLOBALS[owner].items() if name != "torch"}
    if not are_in(vars(sys.modules[owner.__module__]), read):
        return False
    names = {*module._parameters}, {*module._buffers}
    is_read_there = not any(hasattr(cls, name) for name in layer.parameters)
    return is_read_there and names == ({*layer.parameters}, {*layer.buffers})


def _family_key(layer: _Layer, parts: list[Any]) -> Any:
    """What layers of one family have in common; None for a layer that is of none: an index of a
    row may be none of another size.
    """
    attributes = parts[1 : 1 + len(layer.attributes)]
    if not all(value is None or type(value) is bool for value in attributes):
        return None
    kinds = [effects.kind_of(part) if isinstance(part, Metadata) else None for part in parts]
    return tuple([part if kind is None else kind for part, kind in zip(parts, kinds, strict=True)])


def _note(families: dict[Any, Family], key: Any, reset: Reset, tensors: list[Any]) -> None:
    if len(families) >= _MAX_KNOWN:
        families.clear()
    families.setdefault(key, Family(len(tensors))).add(reset, tensors)


_DRAWING = (
    "kaiming_uniform_",
    "uniform_",
    "_calculate_correct_fan",
    "_calculate_fan_in_and_fan_out",
    "calculate_gain",
    "_no_grad_uniform_",
)
_FILLING = ("ones_", "zeros_", "_no_grad_fill_", "_no_grad_zero_")
_BOTH = ("weight", "bias")
_nn = nn.modules

LAYERS = {
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
    nn.RMSNorm: _Layer(
        frozenset({nn.RMSNorm}), ("weight",), ("elementwise_affine",), ("ones_", "_no_grad_fill_")
    ),
    _nn.batchnorm._NormBase: _Layer(
        frozenset(
            {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm}
            | {nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d}
        ),
        _BOTH,
        ("affine", "track_running_stats"),
        _FILLING,
        buffers=("running_mean", "running_var", "num_batches_tracked"),
        methods=("reset_running_stats",),
    ),
    nn.Embedding: _Layer(
        frozenset({nn.Embedding}),
        ("weight",),
        ("padding_idx",),
        ("normal_", "_no_grad_normal_"),
        methods=("_fill_padding_idx_with_zero",),
    ),
}

"""By the class that defines the constructor and ``reset_parameters``."""

_BASES = {cls: cls.__mro__ for layer in LAYERS.values() for cls in layer.classes}
_OF_ALL = ("__mro__", "__getattr__", "__getattribute__")
"""What all classes have by which their parameters are found."""

GLOBALS = {
    cls: globals_of(*(vars(cls)[n] for n in ("__init__", "reset_parameters", *layer.methods)))
    for cls, layer in LAYERS.items()
}
"""What the functions of these classes read in their module."""

_CODE_OF_REPLACEMENTS = _resetting(
    nn.Linear, LAYERS[nn.Linear], nn.Linear.reset_parameters
).__code__

PATCHES = [
    Patch(cls, "reset_parameters", functools.partial(_resetting, cls, layer))
    for cls, layer in LAYERS.items()
]
