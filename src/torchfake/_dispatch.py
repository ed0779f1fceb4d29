"""The one entrance of every operation on fakes.

Enters: what torch hands to ``__torch_dispatch__``, from a mode or from a fake. Leaves: the result:
from a recipe where the cache has one, else from a handler or the interpreter. Invariant: tensors of
classes that are not ours have their own say first.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake import _cache, _device, _origin, _private, _recipes, _state
from torchfake._call import Args, Kwargs, tensors_in
from torchfake._handlers import HANDLERS
from torchfake._interpret import interpret
from torchfake._keys import form_of
from torchfake._metadata import DEFERRED, DEFERRED_AS_META, Storage
from torchfake._ops import plan_of
from torchfake._recipes import Recipe
from torchfake._record import concerns, record
from torchfake._tensor import FakeTensor

_forms = _cache.forms
_make_wrapper = _private.make_wrapper
_default_dtype = torch.get_default_dtype
_in_inference_mode = torch.is_inference_mode_enabled
_fills = _recipes.fills
_getframe = sys._getframe
_here = _origin.here
_is_librarys = _origin.is_library.known


_NONE = Recipe(outcome=None)


def dispatch(
    owner: Any, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
) -> Any:
    """Run one operator. `owner` is the mode or the class that torch calls it on.

    This is the hot path, in one piece because a Python call costs 2 % of a hit. A call of classes
    that are not ours never gets past its key: they have no record.
    """
    try:
        form = _forms[id(func)][(len(args), *kwargs) if kwargs else len(args)]
        key_of, recipes, _ = form
        recipe = recipes[key_of(args, kwargs)]
    except (KeyError, TypeError):
        recipe = _NONE  # and out of here: an error raised here would show this one as its context
    short = recipe.short
    if short is None:
        same, fill = recipe.same, recipe.fill
        if same is None or (fill is not None and not _fills(fill, args[same])):
            return _warm(recipe, func, types, args, kwargs or {})
        return args[same]
    record, device, wrapper, base, dtype, num_bytes, value = short
    if dtype is not None and dtype is not _default_dtype():
        return _cold(func, types, args, kwargs or {})
    if base is None:
        frame = _getframe(1)
        code = frame.f_code
        place = _here(2) if _is_librarys.get(id(code), True) else (code, frame.f_lasti)
        storage = Storage(num_bytes, device, func, place, value)
    elif _in_inference_mode():
        return _warm(recipe, func, types, args, kwargs or {})
    else:
        storage = args[base]._fake_storage
    fake = _make_wrapper(*wrapper)
    fake._fake_meta = record
    fake._fake_storage = storage
    return fake


def _warm(recipe: Recipe, func: Any, types: Any, args: Args, kwargs: Kwargs) -> Any:
    """A hit that takes more than one new wrapper, or no hit."""
    if recipe is _NONE or not _recipes.holds(recipe):
        return _cold(func, types, args, kwargs)
    if recipe.is_recorded:
        return record(func, plan_of(func), args, kwargs, _unrecorded)
    return _made(recipe, func, args, kwargs)


def _made(recipe: Recipe, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if _is_view_of_normal_tensor(func, args):
        with torch.inference_mode(False):
            return _recipes.make(recipe, func, args, kwargs)
    return _recipes.make(recipe, func, args, kwargs)


def _cold(func: Any, types: Any, args: Args, kwargs: Kwargs) -> Any:
    """Nothing is remembered of such a call, or it never is."""
    if _have_their_say(types):
        return NotImplemented
    if concerns(args, kwargs):
        return record(func, plan_of(func), args, kwargs, _unrecorded)
    return _learned(func, args, kwargs)


def _have_their_say(types: Any) -> bool:
    """Whether there are classes of others, as DTensor: they come back with what they wrap."""
    for cls in types:
        own = cls.__torch_dispatch__
        if not issubclass(cls, FakeTensor) and own is not _private.disabled_torch_dispatch:
            return True
    return False


def _learned(func: Any, args: Args, kwargs: Kwargs) -> Any:
    if _is_view_of_normal_tensor(func, args):
        with torch.inference_mode(False):
            return _cache.run_and_remember(_run, func, args, kwargs)
    return _cache.run_and_remember(_run, func, args, kwargs)


def _is_view_of_normal_tensor(func: Any, args: Args) -> bool:
    """Whether inference mode is on, and must not be for the result.

    A view in inference mode is an inference tensor if and only if its base is.
    """
    if not _in_inference_mode() or not args or not isinstance(args[0], torch.Tensor):
        return False
    return not args[0].is_inference() and plan_of(func).is_view


def _run(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The kernel's own way."""
    known = HANDLERS.get(id(func))
    if known is not None:
        return known[1](func, args, kwargs)
    return interpret(func, args, kwargs)


# Deferred.


def dispatch_deferred(
    owner: Any, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
) -> Any:
    """The same in a deferred mode, where all that is made is recorded."""
    plan = plan_of(func)
    if plan.only_looks:
        return dispatch(owner, func, types, args, kwargs)
    if _have_their_say(types):
        return NotImplemented
    mode = _state.thread.modes[-1]
    kwargs = kwargs or {}
    if mode.mark == DEFERRED_AS_META and kwargs.get("device") == _device.META:
        kwargs = {**kwargs, "device": _device.CPU}  # what a fake that shows meta says it is on
    return record(func, plan, args, kwargs, _unrecorded, mode.mark)


def _unrecorded(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of an operation alone, from a recipe where there is one."""
    try:
        key_of, recipes, _ = _forms[id(func)][form_of(args, kwargs)]
        recipe = recipes[key_of(args, kwargs)]
    except (KeyError, TypeError):
        recipe = _NONE
    if recipe is _NONE or not _recipes.holds(recipe):
        return _learned(func, args, kwargs)
    short, same = recipe.unrecorded
    if same is not None:
        return args[same]
    if short is None or short.base is not None:
        return _made(recipe, func, args, kwargs)
    fake = _make_wrapper(*short.wrapper)
    fake._fake_meta = short.record
    fake._fake_storage = Storage(short.num_bytes, short.device, func)  # its line is known above
    return fake


FakeTensor.__torch_dispatch__ = classmethod(dispatch)  # type: ignore[assignment]


class FakeDispatch(TorchDispatchMode):
    """What sits in torch's FAKE slot while a mode is on, so that factories are seen too."""

    _mode_key = _private.FAKE_SLOT
    __torch_dispatch__ = dispatch

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Stays below user modes, as torch's own fake mode does."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Never traced by torch.compile, so not wrapped for it: the wrapper costs 2 us a call."""
        return False

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Context: in the place of the mode's own, for those who want to see what is dispatched."""
        previous = _private.swap_fake_mode(self)
        try:
            yield
        finally:
            _private.swap_fake_mode(previous)


class Watch(FakeDispatch):
    """While a torch function runs on a deferred fake outside of all modes: see _function."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        device = (kwargs or {}).get("device")
        is_for_a_fake = device is not None and _device.decode(device) != device
        if is_for_a_fake and not tensors_in(args, kwargs or {}):
            return record(func, plan_of(func), args, kwargs or {}, _unrecorded, DEFERRED)
        if any(issubclass(cls, FakeTensor) for cls in types):
            return dispatch(self, func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


_state.recording.watch = Watch()


class DeferredDispatch(FakeDispatch):
    """The same while a deferred mode is on."""

    __torch_dispatch__ = dispatch_deferred
