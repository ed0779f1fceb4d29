"""The modes that torch's tracers turn on, and leave on if they are interrupted.

Input: a block of the program that may run a tracer or a dispatch mode. Output: a context; when it
is left, the modes of torch are those that were on before. Invariant: nothing but state of this
thread is changed.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import torch
from torch.utils import _python_dispatch

from torchfake._torch.contexts import Guards, Restoring, handled_errors, interrupt_behind

_MODE_FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
"""Flags of torch.utils._python_dispatch about the modes that are on. torch 2.13 and 2.15."""


_KEYS_OF_SLOTS = torch._C._TorchDispatchModeKey
_SLOTS = (_KEYS_OF_SLOTS.FAKE, _KEYS_OF_SLOTS.PROXY, _KEYS_OF_SLOTS.FUNCTIONAL)


_PYTHON_DISPATCHER = torch._C.DispatchKey.PythonDispatcher
_dispatcher_guards: list[Any] = []  # never left: each has set the state for good


def _set_python_dispatcher(value: bool) -> None:
    """Set whether torch's Python dispatcher is on, on this thread. torch has only guards for that.
    To exclude the dispatcher's key is not enough: the next guard would include the key again.
    """
    if torch._C._dispatch_tls_is_dispatch_key_included(_PYTHON_DISPATCHER) is value:
        return
    make = torch._C._EnablePythonDispatcher if value else torch._C._DisablePythonDispatcher
    guard: Any = make()
    _dispatcher_guards.append(guard)
    guard.__enter__()


class torch_modes_kept(Restoring):
    """Context: at its end, torch's modes are again those that were on at its beginning.

    Torch's tracers leave modes on if they are interrupted before an ``__exit__`` begins, and then
    raise errors when they leave other modes: this context raises the interrupt instead.
    """

    _before: tuple[Any, ...] | None = None
    _keys: Guards | None = None
    _tracing: Any = None  # torch's tracing context
    _python_dispatcher = False

    def interrupted(self, error: BaseException) -> None:
        # Tracers' generators that are suspended in a context would leave that context later.
        for each in handled_errors(error):
            traceback.clear_frames(each.__traceback__)
        interrupt = interrupt_behind(error)
        if interrupt is not None and interrupt is not error:
            raise interrupt

    def change(self) -> None:
        is_included = torch._C._dispatch_tls_is_dispatch_key_included
        self._python_dispatcher = is_included(_PYTHON_DISPATCHER)
        self._keys = Guards(torch._C._PreserveDispatchKeyGuard)
        self._keys.change()
        known = vars(_python_dispatch)
        flags = {name: known[name] for name in _MODE_FLAGS if name in known}
        slots = {slot: torch._C._get_dispatch_mode(slot) for slot in _SLOTS}
        bindings: Any = torch._C
        state = bindings._get_torch_function_state()
        num_function_modes = torch._C._len_torch_function_stack()
        depth = torch._C._len_torch_dispatch_stack()
        guards: Any = sys.modules.get("torch._guards")
        self._tracing = None if guards is None else guards.TracingContext.try_get()
        self._before = flags, slots, depth, num_function_modes, state

    def restore(self) -> None:
        if self._keys is not None:
            _set_python_dispatcher(self._python_dispatcher)
            self._keys.restore()
        if self._before is None:
            return
        flags, slots, depth, num_function_modes, state = self._before
        for slot, mode in slots.items():
            if torch._C._get_dispatch_mode(slot) is not mode:
                torch._C._unset_dispatch_mode(slot)
                if mode is not None:
                    torch._C._set_dispatch_mode(mode)
        while torch._C._len_torch_dispatch_stack() > depth:
            torch._C._pop_torch_dispatch_stack(None)
        while torch._C._len_torch_function_stack() > num_function_modes:
            torch._C._pop_torch_function_stack()
        bindings: Any = torch._C
        bindings._set_torch_function_state(state)
        vars(_python_dispatch).update(flags)
        guards: Any = sys.modules.get("torch._guards")
        if guards is not None and guards.TracingContext.try_get() is not self._tracing:
            guards._TLS.tracing_context = self._tracing
        if _MODE_FLAGS[2] in flags:
            known: Any = _python_dispatch
            known.set_is_in_mode_without_ignore_compile_internals(flags[_MODE_FLAGS[2]])


class in_dispatch_mode(torch_modes_kept):
    """Context: a ``TorchDispatchMode`` is on. ``with mode`` alone leaves it on if it is interrupted
    before torch's ``__exit__`` begins.
    """

    def __init__(self, mode: Any) -> None:
        self._mode = mode

    def change(self) -> Any:
        super().change()
        return self._mode.__enter__()
