"""What fakes do at the level of torch functions: almost nothing, as fast as can be.

Enters: a call of a torch function with a fake among its arguments. Leaves: the same call, but for
two things that C++ settles before any dispatch: whether autocast is on for the tensors' device,
and what a factory's ``device=`` means. Invariant: an operation that is neither costs no Python call
here but what :class:`Switch` costs.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch

from torchfake import _autocast, _private, _state
from torchfake._device import encode
from torchfake._origin import AboutCode

_TAKES_DEVICE = frozenset(
    [getattr(torch, name) for name in dir(torch) if name.endswith("_like") and name[0] != "_"]
    + [
        getattr(torch.Tensor, "new_" + n)
        for n in ("empty", "empty_strided", "full", "ones", "zeros")
    ]
)
_NAMES = frozenset(f.__name__ for f in _TAKES_DEVICE)


def _may_need_override(code: types.CodeType) -> bool:
    """Whether `code` names such a factory, or is torch calling an override that was found."""
    return not _NAMES.isdisjoint(code.co_names) or code.co_filename == torch.overrides.__file__


_needs_override = AboutCode(_may_need_override)


def override(func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    """``__torch_function__`` of a fake."""
    if not all(issubclass(cls, torch.Tensor) for cls in types_):
        return NotImplemented  # a proxy of torch.fx: it records the call
    kwargs = kwargs or {}
    in_a_mode = _state.current() is not None or _private.current_fake_mode() is not None
    if in_a_mode or not _state.recording.is_used:
        return _overridden(func, args, kwargs)
    with _Watched():
        return _overridden(func, args, kwargs)


class _Watched:
    """Context: factories that C++ calls for a deferred fake, outside of all modes, are seen.

    A number that is written, or chosen by ``where``, becomes a tensor first; nobody else sees that.
    """

    def __enter__(self) -> None:
        self._before = _private.swap_fake_mode(_state.recording.watch)

    def __exit__(self, *error: Any) -> None:
        _private.swap_fake_mode(self._before)


def _overridden(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("device") is not None and func in _TAKES_DEVICE:
        kwargs = {**kwargs, "device": encode(kwargs["device"])}
    if _private.any_autocast():
        return _autocast.call(func, args, kwargs)
    if isinstance(func, types.FunctionType):  # what it calls inside may name a device
        return _private.without_override_check(func)(*args, **kwargs)
    with _private.no_subclass_functions():
        return func(*args, **kwargs)


class _Ask:
    """What ``__torch_function__`` is on a thread outside all modes: on while autocast is, and in
    code that names one of the factories above. There C++ would start CUDA for
    ``torch.empty_like(fake, device="cuda")``, before any dispatch; ``nn.Module.to_empty`` does
    just that.
    """

    def __get__(self, thread: Any, owner: Any = None) -> Any:
        unwatched = _state.recording.is_used and _private.current_fake_mode() is None
        needed = unwatched or _private.any_autocast()
        needed = needed or _needs_override(sys._getframe(1).f_code)
        return override if needed else _private.disabled_torch_function


type(_state.thread).torch_function = _Ask()


def autocast_changed() -> None:
    """Settle what ``__torch_function__`` is on this thread, in a mode: on while autocast is."""
    if _state.current() is None:
        vars(_state.thread).pop("torch_function", None)
    elif _private.any_autocast():
        _state.thread.torch_function = override
    else:
        _state.thread.torch_function = _private.disabled_torch_function


class Switch(property):
    """The class attribute ``__torch_function__``: off, unless a call may need the override.

    torch looks it up on each argument of each call, so the answer can differ from call to call. In
    a mode that takes no Python at all: the getter is C's ``getattr`` on the thread, to which the
    fake is no more than a default that is never used. It can itself be called, for a subclass that
    says ``super().__torch_function__(...)``: there a property is given as it is.
    """

    __call__ = staticmethod(override)


switch = Switch(functools.partial(getattr, _state.thread, "torch_function"))
