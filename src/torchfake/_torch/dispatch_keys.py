"""Dispatch keys that torch names and no backend uses, lent to torchfake.

Input: operators and kernels. Output: kernels registered for such a key; tensors and threads that
carry the key. Invariant: registered kernels run only while their key is included on the thread or
carried by a tensor; operators without a kernel for the key fall through to the next one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch

from torchfake._torch.contexts import Guards, holding, shared
from torchfake._torch.private_facts import PrivateFact

_registering = shared(threading.RLock())


_PLAIN_KEYS: Any = torch._C._dispatch_keys(torch.Tensor())  # asked here, where no mode is on


def has_kernel(name: str, key: str) -> bool:
    """Whether an operator has a kernel for a dispatch key; not where the dispatcher does not know
    it, as the ``aten::sym_size`` of TorchScript, of which it raises: C++ that asks a tensor for its
    size cannot pass an error on, and ends the process.
    """
    is_known: bool = torch._C._dispatch_has_kernel(name)
    return is_known and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


class UnusedDispatchKey:
    """A dispatch key that torch names and no backend's tensors carry: all kernels are torchfake's.

    Operators without a kernel for it fall through to the next key, at no cost.
    """

    _own: ClassVar[set[tuple[str, str]]] = set()  # keys and operators registered here

    def __init__(self, name: str) -> None:
        key: Any = torch._C._parse_dispatch_key(name)
        self.key = key
        self.fact = PrivateFact(
            f"the dispatch key {name} is above autograd or autocast, and nothing of torch uses it",
            used_in="_torch/dispatch_keys",
            without="torchfake cannot be used: its kernels would run for torch's tensors too",
            is_shortcut=False,
            check=self._is_unused,
        )
        self._keys = torch._C.DispatchKeySet(key)
        self._waiting: list[Callable[[], None]] = [self.fact.require]
        self._name = name
        self._lower_keys = torch._C._dispatch_keyset_full_after(key)
        self._libraries: dict[str, torch.library.Library] = {}  # own the registrations

    @property
    def keys(self) -> Any:
        """The key in a set, for tensors to carry."""
        self.prepare()
        return self._keys

    def before_use(self, register: Callable[[], None]) -> None:
        """Call `register` before the first tensor or thread has the key: to register kernels takes
        as long as importing fifty files, and most programs need no kernels of most keys. If
        `register` is interrupted, it is called again.
        """
        self._waiting.append(register)

    def _is_unused(self) -> bool:
        """Whether plain tensors lack the key, all kernels are torchfake's, autograd is below."""
        c: Any = torch._C
        registered = c._dispatch_get_registrations_for_dispatch_key(self._name)
        is_above = self._lower_keys.has(c.DispatchKey.AutogradCPU)
        is_ours = self._own.issuperset((self._name, op) for op in registered)
        return is_above and is_ours and not _PLAIN_KEYS.has(self.key)

    def prepare(self) -> None:
        """Call the functions that :meth:`before_use` was given."""
        if self._waiting:
            with holding(_registering):
                while self._waiting:
                    self._waiting[0]()
                    del self._waiting[0]

    def register(self, op: Any, kernel: Callable[..., Any], *, skipping: Any = None) -> None:
        """Run `kernel(redispatch, *args, **kwargs)` for `op`.

        ``redispatch(...)`` calls the kernel of the next key, which would have run without `kernel`.
        It skips kernels of the keys `skipping`.
        """
        lower_keys = self._lower_keys if skipping is None else self._lower_keys - skipping

        redispatch = op._handle.redispatch_boxed  # op.redispatch would be one more Python call

        def with_keyset(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            def continue_below(*args: Any, **kwargs: Any) -> Any:
                return redispatch(keyset & lower_keys, *args, **kwargs)

            return kernel(continue_below, *args, **kwargs)

        self._register(op, with_keyset)

    def register_with_keys(self, op: Any, kernel: Callable[..., Any]) -> None:
        """Run ``kernel(redispatch, keys, *args)``. The kernel is given the call's keys below this
        one, and passes to ``redispatch`` the keys to use.
        """
        redispatch, lower_keys = op._handle.redispatch_boxed, self._lower_keys
        self._register(op, lambda keys, *args: kernel(redispatch, keys & lower_keys, *args))

    def register_frequent(self, op: Any, make_kernel: Callable[..., Any]) -> None:
        """Register the kernel ``make_kernel(redispatch)`` for a frequent operator. The kernel is
        given the keys of the call first, and passes the keys to ``redispatch``.
        """
        redispatch, lower_keys = op._handle.redispatch_boxed, self._lower_keys
        self._register(op, make_kernel(lambda keys, *args: redispatch(keys & lower_keys, *args)))

    def has_kernel(self, op: Any) -> bool:
        """Whether a kernel is registered for `op`."""
        return has_kernel(op.name(), self._name)

    def _register(self, op: Any, with_keyset: Callable[..., Any]) -> None:
        if not self._libraries:
            libraries = {}
            if not torch._C._dispatch_has_backend_fallback(self.key):
                fallbacks = libraries["_"] = torch.library.Library("_", "IMPL", self._name)
                fallbacks.fallback(torch.library.fallthrough_kernel, self._name)
            self.fall_through_in_higher_order_operators()
            self._libraries = libraries
        if not self.has_kernel(op):  # from an interrupted call
            self._own.add((self._name, op.name()))
            library = self._libraries.get(op.namespace)
            if library is None:
                library = torch.library.Library(op.namespace, "IMPL", self._name)
                self._libraries[op.namespace] = library
            library.impl(op, with_keyset, with_keyset=True)

    def fall_through_in_higher_order_operators(self) -> None:
        """Let operators that take functions fall through this key, such as ``autograd.Function``
        under ``torch.func``: such operators have their own tables, without fallbacks. A key that
        torch uses in some of these operators gets kernels in all others that exist by now.
        """
        falls_through = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
        if self.key != torch._C.DispatchKey.PreDispatch and self.key not in falls_through:
            falls_through.append(self.key)
        for op in list(torch._ops._higher_order_ops.values()):
            if self.key in op.py_kernels:
                pass  # torchfake's kernel
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
        """Whether the key is included on this thread, and not excluded by a context."""
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


_AUTOCAST_KEYS = {kind: f"Autocast{kind.upper()}" for kind in ("cpu", "cuda", "mps", "xpu", "mtia")}


def autocast_operators(device_type: str) -> list[str]:
    """The names of the aten operators that the installed torch autocasts on `device_type`."""
    key = _AUTOCAST_KEYS.get(device_type, "AutocastCUDA")  # extensions are not known
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return [name for name in names if name.startswith("aten::")]


_AUTOGRAD_KEYS = ("AutogradCPU", "AutogradCUDA")


class _Registered:
    counts = (0, 0)
    names: frozenset[str] = frozenset()  # of the operators that were returned, or are torch's own


def new_with_own_autograd() -> list[Any]:
    """The operators, other than torch's own, with a kernel for the autograd of one device; none if
    nothing can have been registered since the last call: Python's kernels are counted, and C++
    registers its own when a module is imported.
    """
    now = len(torch.library._impls), len(sys.modules)
    if now == _Registered.counts:
        return []
    find = torch._C._dispatch_get_registrations_for_dispatch_key
    new = set().union(*map(find, _AUTOGRAD_KEYS)) - _Registered.names
    found = {name: _operator(name) for name in new if not name.startswith("aten::")}
    undefined = {name for name, op in found.items() if op is None}
    _Registered.names |= new - undefined
    _Registered.counts = now
    return [op for op in found.values() if op is not None]


def _operator(name: str) -> Any:
    """The operator of this name; None if it has a kernel and is not defined yet."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload or "default", None)


def own_autograd_key(op: Any, device_type: str) -> Any:
    """The key of the kernel that `op` has for the autograd of this device alone, unless autograd is
    over: inside its kernels, and in inference mode. Else None.
    """
    name = f"Autograd{device_type.upper()}"
    if name not in _AUTOGRAD_KEYS:
        return None
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality):
        return None
    return torch._C._parse_dispatch_key(name) if has_kernel(op.name(), name) else None


_WRITING_KEYS = ("CPU", "CUDA", "CompositeExplicitAutograd")


def counts_writes_in_python(op: Any) -> bool:
    """Whether autograd does not count the writes of `op`, and its kernel is in Python: then
    the operators that the kernel calls count them. (A kernel in C++ writes bytes, and counts none.)
    """
    name = op.name()
    if has_kernel(name, "ADInplaceOrView"):
        return False
    path = name.replace("::", "/")
    return any(f"{path}/{key}" in torch.library._impls for key in _WRITING_KEYS)
