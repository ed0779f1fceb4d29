"""The C++ dispatcher: dispatch modes, and contexts without interception.

Input: dispatch modes, rules of operators. Output: the mode in torch's FAKE slot; contexts in which
operators on real tensors run as in eager mode. Invariant: contexts change thread-local state only,
and restore it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, reduce
from operator import or_
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake._torch.contexts import Guards, Restoring, Setting, Together, uninterrupted
from torchfake._torch.dispatch_keys import RECORDING_KEY

any_autocast = torch._C._is_any_autocast_enabled
"""Whether autocast is on, for any device type, on this thread."""


_of_most_types = any_autocast
_is_autocast_enabled = torch.is_autocast_enabled


FORGOTTEN_AUTOCASTS = ("mps", "mtia") if torch.__version__ < "2.13" else ("mps",)
"""Device types that :data:`any_autocast` ignores in torch 2.12 to 2.15."""
_forgets_mtia = "mtia" in FORGOTTEN_AUTOCASTS


def any_autocast_of_all_types() -> bool:
    """Whether autocast is on for any device type, including the types that torch ignores."""
    forgotten = _is_autocast_enabled("mps") or (_forgets_mtia and _is_autocast_enabled("mtia"))
    return forgotten or _of_most_types()


calls_torch_functions = torch._C._is_torch_function_enabled
"""Whether ``__torch_function__`` of tensors is called on this thread: not where it is hidden, as by
:func:`no_interception`."""


_key = torch._C.DispatchKey


def _keys(*keys: Any) -> Any:
    return reduce(or_, map(torch._C.DispatchKeySet, keys))


_TRANSFORMS = _key.FuncTorchDynamicLayerFrontMode
_TRANSFORM_KEYS = _keys(_TRANSFORMS, _key.FuncTorchDynamicLayerBackMode)
_LAZY_KEYS = _keys(_key.Conjugate, _key.Negative, _key.ZeroTensor)
_INTERCEPTING_KEYS = _TRANSFORM_KEYS | _keys(_key.Python, _key.PythonTLSSnapshot, RECORDING_KEY.key)


_INTERCEPTION_GUARDS = (
    torch._C.DisableTorchFunction,
    torch._C._DisableAutocast,
    partial(torch._C._ExcludeDispatchKeyGuard, _INTERCEPTING_KEYS),
)


def no_interception(*makers: Callable[[], Any], then: Callable[[], Any] | None = None) -> Guards:
    """Context: no function mode, dispatch mode, autocast or transform of ``torch.func`` intercepts
    operators on real tensors; nor does what `makers` and `then` turn off.

    While ``__torch_dispatch__`` runs, C++ has passed the keys that resolve conjugate and negative
    views and zero tensors. Without them, an operator that conjugates inside, such as
    ``linalg_pinv``, has wrong values in 2.12 to 2.15, and kernels read zero tensors' memory.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    resolving: list[Callable[[], Any]] = []
    if excluded.has(_key.Conjugate):
        sets = torch._C._dispatch_tls_local_include_set(), excluded - _LAZY_KEYS
        resolving = [partial(torch._C._ForceDispatchKeyGuard, *sets)]
    return Guards(*resolving, *_INTERCEPTION_GUARDS, *makers, then=then)


class _no_dispatch_modes(Restoring):
    """Context: no dispatch mode is on. While a mode is on, even if it does not see an operator, C++
    takes every tensor for a subclass, and some composites then run other kernels.
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
    """Context: no function mode or dispatch mode sees an operator; tensor classes still do."""
    return Together(Guards(torch._C.DisableTorchFunction), _no_dispatch_modes())


_VIEWS = torch._C.DispatchKey.ADInplaceOrView
_are_bases_left_out = partial(torch._C._dispatch_tls_is_dispatch_key_excluded, _VIEWS)
_leave_out_bases = partial(torch._C._dispatch_tls_set_dispatch_key_excluded, _VIEWS)


def view_bases_recorded(on: bool) -> Setting:
    """Context: torch records the base of views, which it does not do while an operation is being
    dispatched to Python. If not `on`, nothing changes.
    """
    return Setting(_are_bases_left_out, _leave_out_bases, False if on else _are_bases_left_out())


def views_without_bases() -> Setting:
    """Context: torch records the base of no view, which then looks like a new tensor."""
    return Setting(_are_bases_left_out, _leave_out_bases, True)


FAKE_SLOT = torch._C._TorchDispatchModeKey.FAKE


_get_mode = torch._C._get_dispatch_mode


current_fake_mode = partial(_get_mode, FAKE_SLOT)
"""Returns the mode in the FAKE slot of this thread, or None."""


def set_fake_mode(mode: Any) -> None:
    """Put `mode`, or None, into this thread's FAKE slot. The same mode may be set again.

    While a mode is in the slot, C++ skips CUDA's lazy initialization when a factory names ``cuda``.
    The mode runs below all user modes (FlopCounterMode), wherever these were entered. While a mode
    whose ``is_recording`` is true is in the slot, :data:`RECORDING_KEY` is included.
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
"""Functions to call once, before operations on tensors with tangents of forward AD are recorded:
the kernels that they register cost each call of their operators a Python call."""


def expect_tangents() -> None:
    """Call the functions in :data:`before_tangents`."""
    for prepare in list(before_tangents):
        prepare()


_unset_mode, _set_mode = torch._C._unset_dispatch_mode, torch._C._set_dispatch_mode
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
_set_included = torch._C._dispatch_tls_set_dispatch_key_included
_RECORDING = RECORDING_KEY.key


def call_recorded(mode: Any, run: Callable[..., Any], *args: Any) -> Any:
    """Call ``run(*args)`` with `mode`, a recording mode, in the FAKE slot, which has to be empty.

    Like :class:`in_fake_slot`, but for frequent calls: a context costs 2 us.
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
    """Have torch call ``rule(mode, func, types, args, kwargs)`` for `op` in place of the
    ``__torch_dispatch__`` of modes whose class is exactly `mode`.

    :func:`torch.library.register_torch_dispatch` does the same, but can neither replace nor remove
    a rule. torch looks for the rule at each call, in three Python functions, of which the last only
    reads a dict: for `op` the dict is read directly.
    """
    rules = _rules_of(op.name())
    rules._data[mode] = rule
    rules.find = rules._data.get


def remove_rule(name: str, mode: type) -> None:
    """Remove the rule that :func:`set_rule` has set for the operator `name`."""
    rules = _rules_of(name)
    vars(rules).pop("find", None)
    rules._data.pop(mode, None)


def slot_state() -> tuple[Any, bool]:
    """The mode in the FAKE slot, and whether operations are recorded: for :func:`put_back`."""
    return current_fake_mode(), _is_included(_RECORDING)


def put_back(state: tuple[Any, bool]) -> None:
    """Restore a :func:`slot_state`. Prepares nothing: it is called while kernels are registered."""
    _put_in_slot(state[0])
    _set_included(_RECORDING, state[1])


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


transforms_see_operators = partial(_is_included, _TRANSFORMS)
"""Whether a transform of ``torch.func`` runs. Inside a dispatch to Python none sees operators."""


def without_transforms() -> Restoring:
    """Context: factories make real tensors, though a fake mode is on and a transform runs."""
    exclude = partial(torch._C._ExcludeDispatchKeyGuard, _TRANSFORM_KEYS)
    return Together(in_fake_slot(None), Guards(exclude))


def _put_in_slot(mode: Any) -> None:
    _unset_mode(FAKE_SLOT)
    if mode is not None:
        _set_mode(mode)


def with_parts_seen_by(mode: Any) -> Setting:
    """Context: `mode` is in the FAKE slot, and sees of which operators C++ composes another one.
    Whether operations are recorded is left as it is.
    """
    return Setting(current_fake_mode, _put_in_slot, mode)


class SlotMode(TorchDispatchMode):
    """A mode for torch's FAKE slot, which users do not see: it stays below theirs, as torch's
    FakeTensorMode does. Dynamo, which never traces it, does not wrap it: that costs 2 us a call.
    """

    _mode_key = FAKE_SLOT

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether the mode is none that a user has entered."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


only_lift_cpu = torch._C._only_lift_cpu_tensors
"""Whether ``torch.tensor(data, device=...)`` moves its data by a dispatched operator, on this
thread. If it does not, the copy to ``cuda`` happens inside C++, where no mode can intercept it."""

set_only_lift_cpu = torch._C._set_only_lift_cpu_tensors
"""Sets :func:`only_lift_cpu`."""


def as_eager() -> Restoring:
    """Context: operators on real tensors run without interception, and record no gradients."""
    normal_mode = partial(torch._C._InferenceMode, False)  # which restores the grad mode too
    no_grad = partial(torch._C._set_grad_enabled, False)
    guards = no_interception(normal_mode, then=no_grad)
    return Together(guards, _no_dispatch_modes()) if _num_dispatch_modes() else guards


def is_called_by_engine() -> bool:
    """Whether the engine, not a hook or the user's backward, calls an operator unrecorded."""
    frame = sys._getframe(1)
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return False
    while frame.f_back and is_own_frame(frame):
        frame = frame.f_back
    return frame.f_code is torch.autograd.graph._engine_run_backward.__code__


def is_own_frame(frame: Any) -> bool:
    """Whether a frame runs code of torchfake."""
    return bool(frame.f_globals.get("__name__", "").startswith("torchfake."))


_ADDING_NODES = frozenset({"VarMeanBackward0", "StdMeanBackward0"})


def is_adding_itself() -> bool:
    """Whether the running node adds two gradients up by itself, before the engine adds up what
    nodes give. In 2.12 to 2.15.
    """
    node: Any = torch._C._current_autograd_node()
    return node is not None and node.name() in _ADDING_NODES


_USES_IN_CALL = 4


def is_held_by_others(argument: Any) -> bool:
    """Whether C++ holds an argument of the call that is being dispatched to Python, other than for
    the call and for the one buffer of the engine that the argument came from. In 2.12 to 2.15.
    """
    return bool(argument._use_count() > _USES_IN_CALL)
