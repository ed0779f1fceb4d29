"""Fakes that are views, or have views, and are given other sizes in place.

Input: a call of ``t_``, ``squeeze_``, ``set_`` and the like, or ``.data =``. Output: its result.
Invariant: gradients of what is written afterwards are eager's.

Of the views of a plain tensor, C++ knows sizes and strides. Of those of a subclass, it knows the
operators, which it replays on the base: so a view whose sizes, or whose base's, have changed since
is exchanged for a view of the base as it is now, in the same Python object.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from typing import Any

import torch

from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import autograd, subclass

_REPLAYED = ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_")
"""Methods whose counterparts out of place give the view that the tensor becomes."""
_OTHERS = ("as_strided_", "set_")


def install() -> None:
    """Give these methods and ``data`` to the class of fakes."""
    for name in (*_REPLAYED, *_OTHERS):
        setattr(FakeTensor, name, _method(name))
    FakeTensor.data = _data  # type: ignore[method-assign, assignment]


def _method(name: str) -> Any:
    change = getattr(subclass.builtin_methods, name)
    replay = getattr(subclass.builtin_methods, name[:-1]) if name in _REPLAYED else None

    @functools.wraps(change)
    def method(fake: Any, *args: Any, **kwargs: Any) -> Any:
        return _changed(fake, change, replay, *args, **kwargs)

    return method


def _changed(fake: Any, change: Any, replay: Any, *args: Any, **kwargs: Any) -> Any:
    """``change(fake, ...)``, which is ``replay(fake, ...)`` in place, if that is not None."""
    base, is_alone = _base_of(fake)
    if is_alone:
        return change(fake, *args, **kwargs)
    views = list(filter(_has_history, [fake] if base is not fake else _views_of(fake)))
    seen = None
    if replay is not None and base is not fake:
        with autograd.enable_grad(), contextlib.suppress(RuntimeError, IndexError):
            seen = replay(fake, *args, **kwargs)  # what it refuses, the change refuses below
    result = change(fake, *args, **kwargs)
    for view in views:
        _exchange(view, base, seen)
    return result


def _base_of(fake: Any) -> tuple[Any, bool]:
    """The base of a view, or the tensor itself; whether no gradient depends on how it lies."""
    dtype = fake._fake_meta.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return fake, True
    with subclass.no_subclass_functions():
        if fake.is_inference() or torch.is_inference_mode_enabled():
            return fake, True
        return (fake._base, False) if fake._is_view() else (fake, fake._use_count() == 1)


def _views_of(base: Any) -> list[Any]:
    """The views of `base`. Nobody lists them, so they are looked for among all objects."""
    if sys.getrefcount(base._fake_storage) <= 2:  # by `base`, and by this call
        return []
    dicts = [held for held in gc.get_referrers(base._fake_storage) if type(held) is dict]
    found = [each for each in gc.get_referrers(*dicts) if isinstance(each, FakeTensor)]
    return [view for view in found if view._is_view() and view._base is base]


def _has_history(view: Any) -> bool:
    """Whether a write can change the history of a view."""
    return not autograd.is_forbidden_view(view) and not (view.requires_grad and view.is_leaf)


def _exchange(view: Any, base: Any, seen: Any) -> None:
    """Have `view` stand for `seen`, or for a view of `base` with its sizes and strides."""
    try:
        if seen is None:
            with autograd.enable_grad():
                size, stride = view.size(), view.stride()
                seen = base.as_strided(size, stride, view.storage_offset())
        autograd.allow_as(seen, view)
    except RuntimeError:  # the base is smaller now
        seen = None
    if seen is None or not autograd.exchange(view, seen):
        autograd.forbid_writes(view)


def _set_data(fake: Any, source: Any) -> None:
    """``fake.data = source``, which is no write: the history stays until there is one."""
    before = fake._fake_meta
    _plain_data.fset(fake, source)
    if fake._fake_meta is not before and _base_of(fake)[0] is not fake:
        autograd.forbid_writes(fake)


_plain_data: Any = FakeTensor.__dict__["data"]
_data = property(_plain_data.fget, _set_data)
