"""``__torch_function__`` of fakes: off, except where C++ decides before any dispatch.

Input: a call of a torch function with a fake among its arguments. Output: its result, corrected for
two decisions that C++ makes before any dispatch: whether autocast is on for the tensors' device,
and what a factory's ``device=`` means. Invariant: a call that needs neither correction costs only
the look-up of :class:`OverrideSwitch`.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch

from torchfake._core import devices, modes
from torchfake._core.devices import encode
from torchfake._core.source_location import CodePredicate
from torchfake._tensor.autocast import kernels as autocast
from torchfake._torch import dispatcher, subclass
from torchfake._torch.compiler import python_functions

_FACTORIES = frozenset(
    [getattr(torch, name) for name in dir(torch) if name.endswith("_like") and name[0] != "_"]
    + [
        getattr(torch.Tensor, "new_" + n)
        for n in ("empty", "empty_strided", "full", "ones", "zeros")
    ]
)
_FACTORY_NAMES = frozenset(f.__name__ for f in _FACTORIES)


def _may_need_override(code: types.CodeType) -> bool:
    """Whether `code` names one of the factories, or is torch's own code that calls overrides."""
    names_factory = not _FACTORY_NAMES.isdisjoint(code.co_names)
    return names_factory or code.co_filename == torch.overrides.__file__


_needs_override = CodePredicate(_may_need_override)
_may_only_ask = CodePredicate(python_functions.asks_for_overrides)


def _only_asks(frame: types.FrameType) -> bool:
    """Whether an attention layer of torch asks for overrides in `frame`: without an override, the
    layer runs a fused kernel, an operator like others, whose result has other bits.
    """
    code = frame.f_code
    return _may_only_ask(code) and frame.f_lineno in python_functions.lines_that_ask(code)


def override(func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    """``__torch_function__`` of a fake."""
    interrupt, modes.thread.interrupt = modes.thread.interrupt, None
    if interrupt is not None:
        raise interrupt
    if not all(issubclass(cls, torch.Tensor) for cls in types_):
        return NotImplemented  # a proxy of torch.fx: it records the call
    return _watched(_call_overridden, func, args, kwargs or {})


def call_of_subclass(cls: Any, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
    """``__torch_function__`` of fakes of a user's class: calls the user's, with eager's classes."""
    others = [t for t in types_ if t.__torch_function__ is not override_switch]
    eager_types = tuple(getattr(t, "_fake_of", t) for t in others)
    kwargs = kwargs or {}
    if kwargs.get("device") is not None and func in _FACTORIES:
        kwargs = {**kwargs, "device": encode(kwargs["device"])}
    func = _unpatched(func)
    function = cls._fake_of.__torch_function__
    if not dispatcher.any_autocast():
        return _watched(function, func, eager_types, args, kwargs)
    with _Autocast():
        return _watched(function, func, eager_types, args, kwargs)


def _unpatched(func: Any) -> Any:
    """Torch's own method in place of its replacement in a mode, which C++ finds by its name: the
    user's function may look it up in a list, as a lazy parameter's does.
    """
    original = getattr(func, "__wrapped__", None)
    name = getattr(original, "__name__", "")
    return original if original is getattr(_BUILTIN, name, func) else func


_BUILTIN = subclass.builtin_methods


class _Autocast(torch.overrides.TorchFunctionMode):
    """Autocasts calls that a user's ``__torch_function__`` makes with overrides switched off."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return override(func, (), args, kwargs)


def _watched(call: Any, *args: Any) -> Any:
    """Call a function so that tensors that C++ makes are dispatched, outside of modes too."""
    in_a_mode = modes.current() is not None or dispatcher.current_fake_mode() is not None
    if in_a_mode or not modes.recording.is_used:
        return call(*args)
    # C++ first makes a tensor of a number that is written, or selected by `where`. That factory is
    # dispatched only if there is a mode.
    factory_mode = modes.recording.factory_mode
    return dispatcher.call_recorded(factory_mode, call, *args)


def _call_overridden(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("device") is not None and func in _FACTORIES:
        kwargs = {**kwargs, "device": encode(kwargs["device"])}
    if dispatcher.any_autocast():
        return autocast.run_with_autocast(func, args, kwargs)
    if isinstance(func, types.FunctionType):  # it may call a factory with a device
        return python_functions.without_override_check(func)(*args, **kwargs)
    return subclass.without_subclass_functions(func, args, kwargs)


class _OverrideWhereNeeded:
    """``__torch_function__`` on a thread outside all modes, or with autocast on. The override is on
    with autocast, for recorded operations, and in code that names one of the factories above: C++
    would start CUDA for ``torch.empty_like(fake, device="cuda")`` before any dispatch.
    """

    def __get__(self, thread: Any, owner: Any = None) -> Any:
        try:
            is_unwatched = modes.recording.is_used and dispatcher.current_fake_mode() is None
            try:
                frame = sys._getframe(1)
            except ValueError:  # C++ asks on a thread of its own
                frame = sys._getframe(0)
            needed = is_unwatched or dispatcher.any_autocast()
            needed = needed or (modes.current() is None and _needs_override(frame.f_code))
            needed = needed and not _only_asks(frame)
            return override if needed else subclass.disabled_torch_function
        except BaseException as error:  # Ctrl-C, which torch would suppress here
            modes.thread.interrupt = error
            return override


type(modes.thread).torch_function = _OverrideWhereNeeded()


def update_override() -> None:
    """Set ``__torch_function__`` on this thread: off in a mode without autocast, else looked up.

    While an operator is dispatched autocast is off for a moment, and so is ``__torch_function__``:
    whether autocast is on behind that cannot be seen there.
    """
    entries = modes.thread.modes  # as in modes.current()
    is_hidden = not dispatcher.calls_torch_functions()
    if not entries or entries[-1].is_over or is_hidden or dispatcher.any_autocast():
        vars(modes.thread).pop("torch_function", None)
    else:
        modes.thread.torch_function = subclass.disabled_torch_function


def expect_autocast() -> None:
    """Have ``__torch_function__`` looked up again, since autocast is about to be switched on."""
    vars(modes.thread).pop("torch_function", None)


def override_state() -> Any:
    """What :func:`update_override` has set on this thread; None if it is looked up."""
    return vars(modes.thread).get("torch_function")


def put_back(state: Any) -> None:
    """Restore an :func:`override_state`: unlike an update, this may run while an operator does."""
    if state is None:
        expect_autocast()
    else:
        modes.thread.torch_function = state


class OverrideSwitch(property):
    """The class attribute ``__torch_function__``: off, unless a call may need the override.

    torch looks the attribute up on each argument of each call, so the answer may differ from call
    to call. In a mode the look-up runs no Python: the getter is C's ``getattr`` on the thread, with
    the fake as the default value, which is never used. The property itself can be called, for a
    subclass that calls ``super().__torch_function__(...)``.
    """

    __call__ = staticmethod(override)


override_switch = OverrideSwitch(functools.partial(getattr, modes.thread, "torch_function"))


_CALLING_OTHERS = (
    "apply_", "cpu", "data_ptr", "get_device", "is_shared", "new", "new_tensor", "numpy",
    "share_memory_", "tolist", "type", "untyped_storage", "__dlpack__", "__dlpack_device__",
    "__format__", "__len__", "__repr__", *devices.KINDS,
)  # fmt: skip
"""Methods of fakes that may call others. (Attributes such as ``device`` are read too often.)"""


def show_calls_to_modes(cls: Any) -> None:
    """Make each of these methods, and the assignment of ``data``, one call to a program's modes
    (``TorchFunctionMode``), as what it overrides is: they do not see what it calls itself.
    """
    own = vars(cls)
    for name in filter(own.__contains__, _CALLING_OTHERS):
        setattr(cls, name, _shown(own[name], name))
    set_data = _shown(cls.data.fset, "__set__")
    set_data.__self__ = _BUILTIN.data  # as of the method of C++
    cls.data = cls.data.setter(set_data)


def _shown(method: Any, name: str) -> Any:
    @functools.wraps(method)
    def shown(*args: Any, **kwargs: Any) -> Any:
        if not subclass.is_function_mode_on():
            return method(*args, **kwargs)
        return torch.overrides.handle_torch_function(shown, (), *args, **kwargs)

    shown.__name__ = name
    return shown
