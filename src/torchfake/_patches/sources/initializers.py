"""Functions of ``torch.nn.init`` that draw or fill: done without a dispatch where nobody looks.

Input: the originals. Output: versions that, of a call like one that was made before, do what that
one did: its draws take their place in the lazy generator, the storage has its value or an unknown
one, and the version counter counts its writes. Invariant: what can be seen of a call is what the
original leaves; where there is more to see (another mode, a transform, a profiler, a storage that
is deferred or larger than the tensor), the original is called.

Constructors initialise each weight, often twice, and the numbers are never computed. What a call
leaves is the same for all tensors of one shape, and so for all layers of a model.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch

from torchfake._cache.cache import families as _families
from torchfake._cache.cache import initialisers as _effects
from torchfake._core import modes, source_location
from torchfake._core.storage import ConstantFill
from torchfake._patches.patch import Patch, is_torchs
from torchfake._patches.sources import effects
from torchfake._patches.sources.callees import METHODS, NAMESPACES
from torchfake._patches.sources.effects import Effect, Family, Kept
from torchfake._random import lazy_generators
from torchfake._recording import fills
from torchfake._recording.fills import Attempt, Fill
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._torch import autograd
from torchfake._unknown_values.answer_log import Answer

_thread = modes.thread
_init = vars(torch.nn.init)
_of_tensors, _of_parameters = NAMESPACES
_record = fills.record_again
_is_unobserved = autograd.is_unobserved
_count_writes = autograd.count_writes
_is_inference = torch.Tensor.is_inference


_MAX_EFFECTS = 4096
_MAX_TRIES = 3  # the first fill of a shape leaves bytes, later ones what all have in common
_ARGUMENT_TYPES = frozenset((float, int, str, bool, type(None)))


def initialising(original: Any) -> Any:
    """A function that fills ``tensor`` whatever it was before, and returns it."""
    helpers = _Helpers(original)

    @functools.wraps(original)
    def replacement(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        on = _thread.modes
        if type(tensor) not in FAKE_TYPES or not on or not _is_unobserved():
            return original(tensor, *args, **kwargs)
        if (
            not _of_tensors.isdisjoint(helpers.methods)
            or not _of_parameters.isdisjoint(helpers.methods)
            or (helpers.find(_init) != helpers.found and not helpers.are_torchs())
        ):
            return original(tensor, *args, **kwargs)
        key = (original, on[-1].mark, tensor._fake_meta, *map(type, args), args)
        if kwargs:
            key = (*key, *kwargs.items(), *map(type, kwargs.values()))
        try:
            effect = _effects.get(key, 0)
        except Exception:  # an argument that has no hash
            return original(tensor, *args, **kwargs)
        if on[-1].mark:
            if type(effect) is not Fill:
                return _learn_fill(effect, original, key, tensor, args, kwargs)
            if on[-1].is_over or _has_negative_zero(args, kwargs) or not _record(effect, tensor):
                return original(tensor, *args, **kwargs)
            return tensor
        if type(effect) is not Effect:
            followed = None if effect else _follow(original, key, tensor, args, kwargs)
            if followed is None:
                return _learn(effect, original, key, tensor, args, kwargs)
            effect = followed
        num_writes, draws, value, num_bytes, answers = effect
        storage = tensor._fake_storage
        if storage.deferred is not None or storage.num_bytes != num_bytes or on[-1].is_over:
            return original(tensor, *args, **kwargs)
        is_known = value is not None or (bool(draws) and type(draws[0]) is Kept)
        if _thread.passes_over_together or (is_known and _has_negative_zero(args, kwargs)):
            return original(tensor, *args, **kwargs)
        if _is_inference(tensor):
            return original(tensor, *args, **kwargs)
        _count_writes(tensor, num_writes)
        storage.value = value
        for each in draws:
            if type(each) is Kept:
                each.repeat(storage)
            else:
                (_thread.draw_position or lazy_generators.position()).pass_over(each)
        if answers:
            _note_again(answers)
        return tensor

    return replacement


class _Helpers:
    """What an initialiser calls in ``torch.nn.init``."""

    __slots__ = ("find", "found", "methods", "names")

    def __init__(self, original: Any) -> None:
        names: set[str] = set()
        methods: set[str] = set()
        waiting = [original]
        while waiting:
            code = getattr(inspect.unwrap(waiting.pop()), "__code__", None)
            for name in () if code is None else code.co_names:
                if name in METHODS:  # no initialiser calls a function of torch.nn.init of this name
                    methods.add(name)
                elif name not in names and inspect.isfunction(_init.get(name)):
                    names.add(name)
                    waiting.append(_init[name])
        self.methods = tuple(methods)  # of tensors, by which it writes
        self.names = sorted(names)
        self.find: Callable[[Any], Any] = itemgetter(*self.names) if names else type
        self.found: Any = None  # when they were torch's last: as they are in a mode, or outside

    def are_torchs(self) -> bool:
        """Whether nobody has replaced one of them, who may do anything in it."""
        for name in self.names:
            function = _init.get(name)
            if not (is_replacement(function) or is_torchs(function, torch.nn.init, name)):
                return False
        self.found = self.find(_init)
        return True


def _follow(original: Any, key: Any, tensor: Any, args: Any, kwargs: Any) -> Effect | None:
    """What a call does that was not made before, if that follows from calls on other sizes."""
    record = tensor._fake_meta
    family: Family | None = _families.get(effects.family_key(original, record, args, kwargs))
    effect = None if family is None else family.effect_on(record)
    if effect is None or not _can_be_learned(tensor, args, kwargs):
        return None
    _remember(key, effect)
    return effect


def _remember(key: Any, effect: Effect | Fill | int) -> None:
    if len(_effects) >= _MAX_EFFECTS:
        _effects.clear()
    _effects[key] = effect


def _learn(num_tries: int, original: Any, key: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
    """Call the original, and note what it did."""
    if num_tries >= _MAX_TRIES or not _can_be_learned(tensor, args, kwargs):
        return original(tensor, *args, **kwargs)
    storage, version = tensor._fake_storage, tensor._version
    waiting = lazy_generators.position().lazy_generator().waiting()
    told = modes.answerers()[0].answers
    before = told.times()
    result = original(tensor, *args, **kwargs)
    added = lazy_generators.position().lazy_generator().added_to(waiting)
    draws = effects.repeatable(added, (tensor,))
    answers = [a for a, times in told.times().items() for _ in range(times - before.get(a, 0))]
    _remember(key, num_tries + 1)
    if result is tensor and tensor._fake_storage is storage and draws is not None:
        num_writes = tensor._version - version
        value = effects.value_beside(draws, storage.value)
        if not draws:
            value = effects.as_fill(value, tensor._fake_meta.dtype)
        is_kept = value is not None and not isinstance(value, ConstantFill)
        is_told = all(a.answered_by == "torch" and a.asked_at == a.made_at for a in answers)
        if not is_kept and is_told:
            effect = Effect(num_writes, draws, value, storage.num_bytes, (*answers,))
            _remember(key, effect)
            _note_family(effect, original, tensor._fake_meta, args, kwargs)
    return result


def _note_family(effect: Effect, original: Any, record: Any, args: Any, kwargs: Any) -> None:
    key = effects.family_key(original, record, args, kwargs) if effects.is_plain(effect) else None
    if key is not None:
        if len(_families) >= _MAX_EFFECTS:
            _families.clear()
        _families.setdefault(key, Family()).add(effect, record)


def _learn_fill(
    num_tries: int, original: Any, key: Any, tensor: Any, args: Any, kwargs: Any
) -> Any:
    """Call the original on a deferred tensor, and note what it recorded."""
    can_be_recorded_again = effects.can_be_recorded_again(tensor)
    if num_tries >= _MAX_TRIES or not (can_be_recorded_again and _have_plain_numbers(args, kwargs)):
        return original(tensor, *args, **kwargs)
    attempt = Attempt(tensor)
    result = original(tensor, *args, **kwargs)
    fills_seen = attempt.fills() if result is tensor else None
    _remember(key, num_tries + 1 if fills_seen is None else fills_seen[0])
    return result


def _note_again(answers: tuple[Answer, ...]) -> None:
    """Note what the call is told this time, on the line of user code that makes it."""
    location = source_location.caller_location(3)
    line = "" if location is None else _text_of(*location)
    for answer in answers:
        modes.answerers()[0].answers.add_again(answer, line)


def _warns(numbers: tuple[Any, ...]) -> bool:
    """Whether ``trunc_normal_`` would warn of its numbers: mean, std, a and b."""
    if not all(type(n) in (int, float) for n in numbers[:4]) or len(numbers) < 4:
        return False
    mean, std, low, high = numbers[:4]
    return bool(mean < low - 2 * std or mean > high + 2 * std)


_texts: dict[tuple[int, int], tuple[Any, str]] = {}
"""Lines as text, by the identity of the code, which is kept alive, and the instruction."""


def _text_of(code: Any, instruction: int) -> str:
    found = _texts.get((id(code), instruction))
    if found is None:
        if len(_texts) >= _MAX_EFFECTS:
            _texts.clear()
        text = str(source_location.SourceLocation(code, instruction))
        found = _texts[id(code), instruction] = code, text
    return found[1]


def _has_negative_zero(args: Any, kwargs: Any) -> bool:
    """Whether a number among the arguments equals that of another call, and has other bits."""
    for number in (*args, *kwargs.values()) if kwargs else args:
        if number == 0 and type(number) is float and math.copysign(1.0, number) < 0:
            return True
    return False


def _can_be_learned(tensor: Any, args: Any, kwargs: Any) -> bool:
    """Whether all that a call does to a plain fake follows from its key, and can be seen."""
    return effects.can_be_seen(tensor) and _have_plain_numbers(args, kwargs)


def _have_plain_numbers(args: Any, kwargs: Any) -> bool:
    """Whether the key of a call tells its arguments apart, and it does not warn of them."""
    numbers = (*args, *kwargs.values()) if kwargs else args
    if not all(type(n) in _ARGUMENT_TYPES for n in numbers) or _warns(numbers):
        return False
    return not _has_negative_zero(args, kwargs)  # its key is that of zero


def is_replacement(function: Any) -> bool:
    """Whether this is a function of ``torch.nn.init`` as it is in a mode."""
    return getattr(function, "__code__", None) is _CODE_OF_REPLACEMENTS


_CODE_OF_REPLACEMENTS = initialising(lambda: None).__code__


_NAMES = (
    "uniform_",
    "normal_",
    "constant_",
    "ones_",
    "zeros_",
    "xavier_uniform_",
    "xavier_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "_no_grad_uniform_",
    "_no_grad_normal_",
    "_no_grad_fill_",
    "_no_grad_zero_",
)


def _initialising_if_torchs(name: str, original: Any) -> Any:
    """The same of a function that nobody has replaced, who may do anything in it."""
    return initialising(original) if is_torchs(original, torch.nn.init, name) else original


PATCHES = [
    Patch(torch.nn.init, name, functools.partial(_initialising_if_torchs, name))
    for name in _NAMES
    if hasattr(torch.nn.init, name)
]
