"""The C++ dispatcher: dispatch modes, and contexts without interception.

Input: dispatch modes, rules of operators. Output: the mode in torch's FAKE slot; contexts in which
operators on real tensors run as in eager mode. Invariant: contexts change thread-local state only,
and restore it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from torchfake._torch.contexts import (
    Guards,
    Restoring,
    Setting,
    Together,
    uninterrupted,
)
from torchfake._torch.dispatch_keys import RECORDING_KEY

any_autocast = torch._C._is_any_autocast_enabled
"""Whether autocast is on, for any device type, on this thread."""


_of_most_types = any_autocast
_is_autocast_enabled = torch.is_autocast_enabled


FORGOTTEN_AUTOCASTS = ("mps", "mtia") if torch.__version__ < "2.13" else ("mps",)
"""Types that torch 2.12 to 2.15 forgets there."""
_forgets_mtia = "mtia" in FORGOTTEN_AUTOCASTS


def any_autocast_of_all_types() -> bool:
    """Whether autocast is on for any device type, including the types that torch forgets."""
    forgotten = _is_autocast_enabled("mps") or (_forgets_mtia and _is_autocast_enabled("mtia"))
    return forgotten or _of_most_types()


_INTERCEPTING_KEYS = (
    torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.PythonTLSSnapshot)
    | torch._C.DispatchKeySet(RECORDING_KEY.key)
)


_INTERCEPTION_GUARDS = (
    torch._C.DisableTorchFunction,
    torch._C._DisableAutocast,
    partial(torch._C._ExcludeDispatchKeyGuard, _INTERCEPTING_KEYS),
)


def no_interception() -> Guards:
    """Context: no function mode, dispatch mode or autocast intercepts operators on real tensors."""
    return Guards(*_INTERCEPTION_GUARDS)


class _no_dispatch_modes(Restoring):
    """Context: no dispatch mode is on. While one is, whether it sees an operator or not, C++ takes
    every tensor for a subclass, and some composites then run other kernels.
    """

    def __init__(self) -> None:
        self._modes: list[Any] = []
        self._state: list[str] = []

    def change(self) -> None:
        depth = torch._C._len_torch_dispatch_stack()
        self._modes = [torch._C._get_dispatch_stack_at(i) for i in range(depth)]
        if depth:
            pops = [partial(torch._C._pop_torch_dispatch_stack, None)] * depth
            uninterrupted([*pops, partial(self._state.append, "popped")])

    def restore(self) -> None:
        if self._state:
            pushes = [partial(torch._C._push_on_torch_dispatch_stack, m) for m in self._modes]
            uninterrupted([self._state.clear, *pushes])


def is_seen_by_modes() -> bool:
    """Whether a function mode is on, or a dispatch mode besides the one in the FAKE slot."""
    return _num_function_modes() > 0 or _num_dispatch_modes() > 1


_num_function_modes = torch._C._len_torch_function_stack
_num_dispatch_modes = torch._C._len_torch_dispatch_stack


def hidden_from_modes() -> Together:
    """Context: no function mode and no dispatch mode sees what runs; the classes of tensors do."""
    return Together(Guards(torch._C.DisableTorchFunction), _no_dispatch_modes())


def views_noted(on: bool) -> Setting:
    """Context: views made here have their base, though an operation is being dispatched to Python,
    where torch does not note it any more. Or, if not `on`, as it is.
    """
    key = torch._C.DispatchKey.ADInplaceOrView
    is_excluded = partial(torch._C._dispatch_tls_is_dispatch_key_excluded, key)
    return Setting(
        is_excluded,
        partial(torch._C._dispatch_tls_set_dispatch_key_excluded, key),
        False if on else is_excluded(),
    )


_AUTOCAST_KEYS = {kind: f"Autocast{kind.upper()}" for kind in ("cpu", "cuda", "mps", "xpu", "mtia")}


def autocast_operators(device_type: str) -> list[str]:
    """The names of the aten operators that the installed torch autocasts on `device_type`."""
    key = _AUTOCAST_KEYS.get(device_type, "AutocastCUDA")  # an extension's are not known
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return [name for name in names if name.startswith("aten::")]


FAKE_SLOT = torch._C._TorchDispatchModeKey.FAKE


_get_mode = torch._C._get_dispatch_mode


current_fake_mode = partial(_get_mode, FAKE_SLOT)
"""Returns the mode in the FAKE slot of this thread, or None."""


def set_fake_mode(mode: Any) -> None:
    """Set this thread's FAKE mode to `mode`, or None. It may be set again to the same.

    While there is a FAKE mode, C++ skips CUDA's lazy initialisation when a factory names ``cuda``.
    It also runs below all user modes (FlopCounterMode), wherever these were entered. A mode whose
    ``is_recording`` is true includes :data:`RECORDING_KEY` as long as it is there.
    """
    torch._C._unset_dispatch_mode(FAKE_SLOT)
    if mode is not None:
        torch._C._set_dispatch_mode(mode)
    records = getattr(mode, "is_recording", False)
    if records and forward_ad._current_level >= 0:
        expect_tangents()
    if records is not torch._C._dispatch_tls_is_dispatch_key_included(RECORDING_KEY.key):
        RECORDING_KEY.set_included(records)


before_tangents: list[Callable[[], None]] = []
"""To be called once, before operations on tensors with tangents of forward AD are recorded: kernels
for these would cost all other calls of their operators a call of Python."""


def expect_tangents() -> None:
    """From now on there may be tangents while operations are recorded."""
    for prepare in list(before_tangents):
        prepare()


_unset_mode, _set_mode = torch._C._unset_dispatch_mode, torch._C._set_dispatch_mode
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
_set_included = torch._C._dispatch_tls_set_dispatch_key_included
_RECORDING = RECORDING_KEY.key


def call_recorded(mode: Any, run: Callable[..., Any], *args: Any) -> Any:
    """``run(*args)`` with `mode`, which records, in the FAKE slot, where there is nothing now.

    The same as :class:`in_fake_slot`, for calls by the thousand: a context costs 2 us.
    """
    RECORDING_KEY.prepare()
    was_included = _is_included(_RECORDING)  # inside an operation that is being recorded
    if forward_ad._current_level >= 0:
        expect_tangents()
    try:
        _set_mode(mode)
        _set_included(_RECORDING, True)
        result = run(*args)
        _unset_mode(FAKE_SLOT)
        _set_included(_RECORDING, was_included)
        return result
    except BaseException:  # Ctrl-C in the last lines too
        _unset_mode(FAKE_SLOT)
        _set_included(_RECORDING, was_included)
        raise


def _rules_of(name: str) -> Any:
    from torch._library.simple_registry import singleton  # in 2.11, 2.13, 2.15

    return singleton.find(name).torch_dispatch_rules


def set_rule(op: Any, mode: type, rule: Callable[..., Any]) -> None:
    """Have torch call ``rule(mode, func, types, args, kwargs)`` for `op` in the place of the
    ``__torch_dispatch__`` of modes of this class, not of one derived from it.

    The same as :func:`torch.library.register_torch_dispatch`, which can neither exchange a rule nor
    take one away. torch looks for the rule at each call, in three functions of Python; of those the
    last only reads a dict, and is spared here for this operator.
    """
    rules = _rules_of(op.name())
    rules._data[mode] = rule
    rules.find = rules._data.get


def remove_rule(name: str, mode: type) -> None:
    """Undo that, for the operator of this name."""
    rules = _rules_of(name)
    vars(rules).pop("find", None)
    rules._data.pop(mode, None)


_NOT_CHANGED: Any = object()


class in_fake_slot(Restoring):
    """Context: `mode`, or none, is this thread's FAKE mode."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._before = _NOT_CHANGED

    def change(self) -> None:
        self._before = current_fake_mode()
        if self._before is not self._mode:
            set_fake_mode(self._mode)

    def restore(self) -> None:
        if self._before is not _NOT_CHANGED and self._before is not self._mode:
            set_fake_mode(self._before)


only_lift_cpu = torch._C._only_lift_cpu_tensors
"""Whether ``torch.tensor(data, device=...)`` moves its data by a dispatched operator, on this
thread. If it does not, the copy to ``cuda`` happens inside C++, where no mode can intercept it."""

set_only_lift_cpu = torch._C._set_only_lift_cpu_tensors
"""Sets :func:`only_lift_cpu`."""


def as_eager() -> Restoring:
    """Context: operators on real tensors run without interception, and record no gradients."""
    normal_mode = partial(torch._C._InferenceMode, False)  # which restores the grad mode too
    no_grad = partial(torch._C._set_grad_enabled, False)
    guards = Guards(*_INTERCEPTION_GUARDS, normal_mode, then=no_grad)
    return Together(guards, _no_dispatch_modes()) if _num_dispatch_modes() else guards
