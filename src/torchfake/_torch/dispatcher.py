"""The C++ dispatcher: dispatch keys, dispatch modes, and contexts without interception.

Input: operators, kernels, dispatch modes. Output: kernels registered for dispatch keys that no
backend uses; contexts in which operators on real tensors run as in eager mode. Invariant: what a
context or a ``swap_`` function changes is thread-local and can be restored; registered kernels run
only while their key is included or carried by a tensor.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from torchfake._contexts import (
    Guards,
    Restoring,
    Setting,
    Together,
    handled_errors,
    holding,
    interrupt_behind,
    uninterrupted,
)
from torchfake._torch.private_facts import PrivateFact

any_autocast = torch._C._is_any_autocast_enabled
"""Whether autocast is on, for any device type, on this thread."""


_of_most_types = any_autocast
_is_autocast_enabled = torch.is_autocast_enabled


FORGOTTEN_AUTOCASTS = ("mps", "mtia") if torch.__version__ < "2.13" else ("mps",)
"""Types that torch 2.12 to 2.15 forgets there."""
_forgets_mtia = "mtia" in FORGOTTEN_AUTOCASTS


def any_autocast_of_all_types() -> bool:
    """The same, those that torch forgets included."""
    forgotten = _is_autocast_enabled("mps") or (_forgets_mtia and _is_autocast_enabled("mtia"))
    return forgotten or _of_most_types()


_registering = threading.RLock()


_PLAIN_KEYS: Any = torch._C._dispatch_keys(torch.Tensor())  # asked here, where no mode is on


class UnusedDispatchKey:
    """A dispatch key that torch names and no backend's tensors carry: its kernels are all ours.

    Operators without a kernel for it fall through to the next key, at no cost.
    """

    _own: ClassVar[set[tuple[str, str]]] = set()  # keys and operators with a kernel of ours

    def __init__(self, name: str) -> None:
        key: Any = torch._C._parse_dispatch_key(name)
        self.key = key
        self.fact = PrivateFact(
            f"the dispatch key {name} is above autograd or autocast, and nothing of torch uses it",
            used_in="_torch/dispatcher",
            without="torchfake cannot be used: its kernels would run for torch's tensors too",
            is_shortcut=False,
            check=self._is_unused,
        )
        self._keys = torch._C.DispatchKeySet(key)
        self._waiting: list[Callable[[], None]] = [self.fact.require]
        self._name = name
        self._lower_keys = torch._C._dispatch_keyset_full_after(key)
        self._libraries: list[torch.library.Library] = []  # own the registrations

    @property
    def keys(self) -> Any:
        """The key in a set, for tensors to carry."""
        self.prepare()
        return self._keys

    def before_use(self, register: Callable[[], None]) -> None:
        """Have `register` called before the first tensor or thread has the key: to register kernels
        takes as long as importing fifty files, and most programs need no kernels of most keys. If
        it is interrupted, it is called again.
        """
        self._waiting.append(register)

    def _is_unused(self) -> bool:
        """Whether no tensor carries the key, all kernels for it are ours, and autograd is below."""
        c: Any = torch._C
        registered = c._dispatch_get_registrations_for_dispatch_key(self._name)
        is_above = self._lower_keys.has(c.DispatchKey.AutogradCPU)
        is_ours = self._own.issuperset((self._name, op) for op in registered)
        return is_above and is_ours and not _PLAIN_KEYS.has(self.key)

    def prepare(self) -> None:
        """Register the kernels that wait for it."""
        if self._waiting:
            with holding(_registering):
                while self._waiting:
                    self._waiting[0]()
                    del self._waiting[0]

    def register(self, op: Any, kernel: Callable[..., Any], *, skipping: Any = None) -> None:
        """Run `kernel(redispatch, *args, **kwargs)` for `op`.

        ``redispatch(...)`` calls the kernel of the next key, which would have run without this.
        No kernel of the keys `skipping` runs after it.
        """
        lower_keys = self._lower_keys if skipping is None else self._lower_keys - skipping

        redispatch = op._handle.redispatch_boxed  # op.redispatch is a Python call more

        def with_keyset(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            def continue_below(*args: Any, **kwargs: Any) -> Any:
                return redispatch(keyset & lower_keys, *args, **kwargs)

            return kernel(continue_below, *args, **kwargs)

        self._register(op, with_keyset)

    def register_with_keys(self, op: Any, kernel: Callable[..., Any]) -> None:
        """Run ``kernel(redispatch, keys, *args)``. It is given the lower keys of those of the call,
        and gives ``redispatch`` those that it wants.
        """
        redispatch, lower_keys = op._handle.redispatch_boxed, self._lower_keys
        self._register(op, lambda keys, *args: kernel(redispatch, keys & lower_keys, *args))

    def register_frequent(self, op: Any, make_kernel: Callable[..., Any]) -> None:
        """The same for what is called often: ``make_kernel(redispatch)`` makes the kernel, which is
        given the keys of the call first, and gives them to ``redispatch``.
        """
        redispatch, lower_keys = op._handle.redispatch_boxed, self._lower_keys
        self._register(op, make_kernel(lambda keys, *args: redispatch(keys & lower_keys, *args)))

    def has_kernel(self, op: Any) -> bool:
        """Whether a kernel is registered for `op`."""
        found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), self._name)
        return found

    def _register(self, op: Any, with_keyset: Callable[..., Any]) -> None:
        if not self._libraries:
            libraries = [torch.library.Library("aten", "IMPL", self._name)]
            if not torch._C._dispatch_has_backend_fallback(self.key):
                fallbacks = torch.library.Library("_", "IMPL", self._name)
                fallbacks.fallback(torch.library.fallthrough_kernel, self._name)
                libraries.append(fallbacks)
            self.fall_through_in_higher_order_operators()
            self._libraries = libraries
        if not self.has_kernel(op):  # of an interrupted call
            self._own.add((self._name, op.name()))
            self._libraries[0].impl(op, with_keyset, with_keyset=True)

    def fall_through_in_higher_order_operators(self) -> None:
        """The same for operators that take functions, as ``autograd.Function`` under ``torch.func``
        is one: they have tables of their own, and no fallback for a key. A key that torch uses in
        some of them gets kernels in the others that there are now.
        """
        falls_through = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
        if self.key != torch._C.DispatchKey.PreDispatch and self.key not in falls_through:
            falls_through.append(self.key)
        for op in list(torch._ops._higher_order_ops.values()):
            if self.key in op.py_kernels:
                pass  # a kernel of ours
            elif self.key in falls_through:
                op.fallthrough(self.key)
            else:
                op.py_impl(self.key)(partial(self._call_below, op))

    def _call_below(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        with self.excluded():
            return op(*args, **kwargs)

    def is_included(self) -> bool:
        """Whether the key is dispatched to on this thread, whatever keys the tensors carry."""
        included: bool = torch._C._dispatch_tls_is_dispatch_key_included(self.key)
        return included

    def is_next(self) -> bool:
        """The same, and not excluded by a context."""
        return self.is_included() and not torch._C._dispatch_tls_is_dispatch_key_excluded(self.key)

    def set_included(self, value: bool) -> None:
        """Set whether the key is dispatched to on this thread, whatever keys the tensors carry."""
        self.prepare()
        torch._C._dispatch_tls_set_dispatch_key_included(self.key, value)

    def included(self) -> Guards:
        """Context: the key is dispatched to on this thread, whatever keys the tensors carry."""
        self.prepare()
        return Guards(partial(torch._C._IncludeDispatchKeyGuard, self.key))

    def excluded(self) -> Guards:
        """Context: the key is not dispatched to on this thread."""
        return Guards(partial(torch._C._ExcludeDispatchKeyGuard, self._keys))


WRAPPER_KEY = UnusedDispatchKey("DeferredInit")
"""The key that wrappers of fakes carry, above autograd and all composite kernels. torch reserves
it for torchdistx, a discontinued project that torchfake replaces."""

RECORDING_KEY = UnusedDispatchKey("TESTING_ONLY_GenericMode")
"""The key of a thread while operations are recorded, for real tensors and fakes alike, above all
others. torch has it for a test of its own, in C++."""

CUDA_WRAPPER_KEY = UnusedDispatchKey("TESTING_ONLY_GenericWrapper")
"""The key that wrappers of plain fakes on CUDA carry in addition. torch has it for tests in C++."""

ZERO_WRAPPER_KEY = UnusedDispatchKey("PreDispatch")
"""The key that wrappers of fake zero tensors carry in addition. torch includes it for threads that
trace before autograd, and has no kernels for it: its fallback goes on with the next key."""

AUTOCAST_KEY = UnusedDispatchKey("AutocastIPU")
"""A key in the position of autocast, of a backend that was never part of torch and is
discontinued."""

AUTOCAST_KEY_DEVICE_TYPE = "ipu"
"""The device type for which autocast has to be on for kernels of that key to run."""


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


def current_fake_mode() -> Any:
    """The FAKE mode of this thread, or None."""
    return _get_mode(FAKE_SLOT)


_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_PYTHON = torch._C.DispatchKey.Python


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


_MODE_FLAGS = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
"""What torch.utils._python_dispatch knows of the modes that are on. torch 2.13 and 2.15."""


_KEYS_OF_SLOTS = torch._C._TorchDispatchModeKey
_SLOTS = (_KEYS_OF_SLOTS.FAKE, _KEYS_OF_SLOTS.PROXY, _KEYS_OF_SLOTS.FUNCTIONAL)


_PYTHON_DISPATCHER = torch._C.DispatchKey.PythonDispatcher
_dispatcher_guards: list[Any] = []  # never left: each has set the state for good


def _set_python_dispatcher(value: bool) -> None:
    """Set whether torch's Python dispatcher is on, on this thread: it has guards for that alone. To
    exclude its key is not enough: the next guard would include it again.
    """
    if torch._C._dispatch_tls_is_dispatch_key_included(_PYTHON_DISPATCHER) is value:
        return
    make = torch._C._EnablePythonDispatcher if value else torch._C._DisablePythonDispatcher
    guard: Any = make()
    _dispatcher_guards.append(guard)
    guard.__enter__()


class torch_modes_kept(Restoring):
    """Context: the modes of torch that are on when it is left are those that were on before.

    torch's tracers leave modes of theirs on if they are interrupted before an ``__exit__`` begins,
    and then fail where they leave others: what leaves this context is the interrupt.
    """

    _before: tuple[Any, ...] | None = None
    _keys: Guards | None = None
    _tracing: Any = None  # torch's tracing context
    _python_dispatcher = False

    def interrupted(self, error: BaseException) -> None:
        # Generators of theirs that are suspended in a context would restore that later.
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


only_lift_cpu = torch._C._only_lift_cpu_tensors
"""Whether ``torch.tensor(data, device=...)`` moves its data by a dispatched operator, on this
thread. If it does not, the copy to ``cuda`` happens inside C++, where no mode can intercept it."""

set_only_lift_cpu = torch._C._set_only_lift_cpu_tensors
"""Sets :func:`only_lift_cpu`."""


def as_eager() -> Together:
    """Context: operators on real tensors run without interception, and record no gradients."""
    normal_mode = partial(torch._C._InferenceMode, False)  # which restores the grad mode too
    no_grad = partial(torch._C._set_grad_enabled, False)
    guards = Guards(*_INTERCEPTION_GUARDS, normal_mode, then=no_grad)
    return Together(guards, _no_dispatch_modes())
