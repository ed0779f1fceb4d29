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

from torchfake._tensor.fake_tensor import FakeTensor, rebind
from torchfake._torch import autograd, subclass

_RECORDED = ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_")
"""Methods that autograd records; it does not write the base."""
_OTHERS = ("as_strided_", "set_")


def install() -> None:
    """Give these methods and ``data`` to the class of fakes."""
    for name in (*_RECORDED, *_OTHERS):
        setattr(FakeTensor, name, _method(name))
    FakeTensor.data = _data  # type: ignore[method-assign, assignment]


def _method(name: str) -> Any:
    change = getattr(subclass.builtin_methods, name)

    @functools.wraps(change)
    def method(fake: Any, *args: Any, **kwargs: Any) -> Any:
        before = fake._fake_meta
        base, is_alone = _base_of(fake, before)
        if is_alone:
            return change(fake, *args, **kwargs)
        views = _views_of(fake, base, before, fake._fake_storage)
        are_of_leaves = [view.requires_grad and not base.requires_grad for view in views]
        result = change(fake, *args, **kwargs)
        is_recorded = base is not fake and name in _RECORDED
        for view, is_of_leaf in zip(views, are_of_leaves, strict=True):
            if is_of_leaf:
                seen = _as_of_leaf(view, base)
            else:
                seen = _as_until_written(view, base) if is_recorded else None
            _exchange(view, base, seen)
        return result

    return method


def _base_of(fake: Any, before: Any) -> tuple[Any, bool]:
    """The base of a view, or the tensor itself; whether no gradient depends on how it lies.
    `before` is the record that it had before the change.
    """
    dtype = fake._fake_meta.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        return fake, True
    with subclass.no_subclass_functions():
        if fake.is_inference() or torch.is_inference_mode_enabled():
            return fake, True
        base: Any = fake._base
        if base is None:
            return fake, fake._use_count() == 1
        return base, _have_other_elements(before, base._fake_meta)


def _views_of(fake: Any, base: Any, before: Any, storage: Any) -> list[Any]:
    """`fake`, a view of `base`, or if it is `base`, its views on `storage`: those with a history
    that writes can change, and depends on how they lie. Nobody lists the views of a base, so all
    objects are searched.
    """
    if base is not fake:
        return [fake] if _has_history(fake) else []
    if sys.getrefcount(storage) <= 3:  # by `base` or a variable of the caller, and by this call
        return []
    dicts = [held for held in gc.get_referrers(storage) if type(held) is dict]
    found = [each for each in gc.get_referrers(*dicts) if isinstance(each, FakeTensor)]
    views = (view for view in found if view._is_view() and view._base is base)
    return [v for v in views if _has_history(v) and not _have_other_elements(v._fake_meta, before)]


def _has_history(view: Any) -> bool:
    """Whether a write can change the history of a view."""
    return not autograd.is_forbidden_view(view) and not (view.requires_grad and view.is_leaf)


def _exchange(view: Any, base: Any, seen: Any) -> None:
    """Have `view` stand for `seen`, or for a view of `base` with its sizes and strides."""
    try:
        if seen is None:
            with autograd.enable_grad():
                seen = _laid_out_as(view, base)
        autograd.allow_as(seen, view)
    except RuntimeError:  # the base is smaller now
        seen = None
    if seen is None or not autograd.exchange(view, seen):
        autograd.forbid_writes(view)


def _laid_out_as(view: Any, base: Any) -> Any:
    return base.as_strided(view.size(), view.stride(), view.storage_offset())


def _have_other_elements(view: Any, base: Any) -> bool:
    """Whether C++ replays the operators of a view of a plain tensor too, however it lies by now:
    sizes and strides do not tell a ``view_as_real`` or ``conj``. The arguments are records.
    """
    return (view.dtype, view.conj, view.neg) != (base.dtype, base.conj, base.neg)


class _UntilWritten(torch.autograd.Function):
    """A view of `base` with the sizes and strides of `view`, and the history of `view`."""

    @staticmethod
    def forward(ctx: Any, view: Any, bases: list[Any]) -> Any:
        return _laid_out_as(view, bases[0])  # of no input, so autograd keeps it as it is

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


class _Lost(torch.autograd.Function):
    """A view of `base`, laid out as `view`, whose gradient goes nowhere: `base` needs none, but a
    view of it is a leaf, of which `view` was a view before one of them was written.
    """

    @staticmethod
    def forward(ctx: Any, leaf: Any, bases: list[Any], view: Any) -> Any:
        return _laid_out_as(view, bases[0])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, None, None


def _set_data(fake: Any, source: Any) -> None:
    """``fake.data = source``, which is no write: histories stay until there is one."""
    before, storage = fake._fake_meta, fake._fake_storage
    _plain_data.fset(fake, source)
    if fake._fake_meta is before or torch.nn.parameter.is_lazy(fake):  # which has no sizes yet
        return
    base, is_alone = _base_of(fake, before)
    if is_alone or (base is fake and _are_replayed_alike(fake, before)):
        return
    earliest = autograd.next_sequence_number()
    for view in _views_of(fake, base, before, storage):
        is_written = autograd.is_later(view.grad_fn, earliest)  # and was only now replayed by C++
        _exchange(view, base, None if is_written else _as_until_written(view, base))


def _are_replayed_alike(base: Any, before: Any) -> bool:
    """Whether C++ may replay the views of `base`: it lies as before, or is a leaf, as a parameter
    is, whose views cannot be written. The search for views takes 0.1 s among a million objects.
    """
    now = base._fake_meta
    lies_alike = (now.size, now.stride, now.offset) == (before.size, before.stride, before.offset)
    return lies_alike or (base.requires_grad and base.is_leaf)


def _as_until_written(view: Any, base: Any) -> Any:
    """What `view` has to stand for: a read finds its history, and a write finds how it lies now."""
    with autograd.enable_grad(), contextlib.suppress(RuntimeError):
        name = view.grad_fn.name() if view.grad_fn is not None else _UntilWritten.__name__
        seen = autograd.with_nodes_named(name, _UntilWritten).apply(view, [base])
        rebind(seen, view._fake_meta, view._fake_storage)  # of another dtype, perhaps
        return seen
    return None


def _as_of_leaf(view: Any, base: Any) -> Any:
    """What `view` has to stand for if its history is that of a leaf which is a view of `base`."""
    with autograd.enable_grad():
        leaf = torch.empty_like(base).requires_grad_()
        named = autograd.with_nodes_named("AsStridedBackward0", _Lost)
        return named.apply(leaf, [base], view.detach())


_plain_data: Any = FakeTensor.__dict__["data"]
_data = property(_plain_data.fget, _set_data)
