"""The C++ dispatcher: dispatch keys, dispatch modes, and contexts without interception.

Input: operators, kernels, dispatch modes. Output: kernels registered for dispatch keys that no
backend uses; contexts in which operators on real tensors run as in eager mode. Invariant: what a
context or a ``swap_`` function changes is thread-local and can be restored; registered kernels run
only while their key is included or carried by a tensor. Called by: almost all packages above; keys
by ``_operators/composites``, ``_tensor/autocast`` and ``_tensor/fake_tensor``, modes by ``fake``
and ``_tensor/torch_function``, contexts wherever real tensors are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

any_autocast = torch._C._is_any_autocast_enabled
"""Whether autocast is on, for any device type, on this thread."""


class UnusedDispatchKey:
    """A dispatch key that torch names and no backend's tensors carry: its kernels are all ours.

    Operators without a kernel for it fall through to the next key, at no cost.
    """

    def __init__(self, name: str) -> None:
        key: Any = torch._C._parse_dispatch_key(name)
        self.key = key
        self.keys = torch._C.DispatchKeySet(key)
        self._name = name
        self._lower_keys = torch._C._dispatch_keyset_full_after(key)
        self._libraries: list[torch.library.Library] = []  # own the registrations

    def register(self, op: Any, kernel: Callable[..., Any], *, skipping: Any = None) -> None:
        """Run `kernel(redispatch, *args, **kwargs)` for `op`.

        ``redispatch(...)`` calls the kernel of the next key, which would have run without this.
        No kernel of the keys `skipping` runs after it.
        """
        lower_keys = self._lower_keys if skipping is None else self._lower_keys - skipping

        def with_keyset(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            def redispatch(*args: Any, **kwargs: Any) -> Any:
                return op.redispatch(keyset & lower_keys, *args, **kwargs)

            return kernel(redispatch, *args, **kwargs)

        if not self._libraries:
            fallbacks = torch.library.Library("_", "IMPL", self._name)
            fallbacks.fallback(torch.library.fallthrough_kernel, self._name)
            self._libraries += [fallbacks, torch.library.Library("aten", "IMPL", self._name)]
            self._fall_through_in_higher_order_operators()
        self._libraries[1].impl(op, with_keyset, with_keyset=True)

    def _fall_through_in_higher_order_operators(self) -> None:
        """The same for operators that take functions, as ``autograd.Function`` under ``torch.func``
        is one: they have tables of their own, and no fallback for a key.
        """
        torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(self.key)
        for op in torch._ops._higher_order_ops.values():
            op.fallthrough(self.key)

    def set_included(self, value: bool) -> None:
        """Set whether the key is dispatched to on this thread, whatever keys the tensors carry."""
        torch._C._dispatch_tls_set_dispatch_key_included(self.key, value)

    def included(self) -> Any:
        """Context: the key is dispatched to on this thread, whatever keys the tensors carry."""
        return torch._C._IncludeDispatchKeyGuard(self.key)

    def excluded(self) -> Any:
        """Context: the key is not dispatched to on this thread."""
        return torch._C._ExcludeDispatchKeyGuard(self.keys)


WRAPPER_KEY = UnusedDispatchKey("DeferredInit")
"""The key that wrappers of fakes carry, above autograd and all composite kernels. torch reserves
it for torchdistx, a discontinued project that torchfake replaces."""

RECORDING_KEY = UnusedDispatchKey("TESTING_ONLY_GenericMode")
"""The key of a thread while operations are recorded, for real tensors and fakes alike, above all
others. torch has it for a test of its own, in C++."""

ZERO_WRAPPER_KEY = UnusedDispatchKey("TESTING_ONLY_GenericWrapper")
"""The key that wrappers of fake zero tensors carry in addition. torch has it for tests in C++."""

AUTOCAST_KEY = UnusedDispatchKey("AutocastIPU")
"""A key in the position of autocast, of a backend that was never part of torch and is
discontinued."""

AUTOCAST_KEY_DEVICE_TYPE = "ipu"
"""The device type for which autocast has to be on for kernels of that key to run."""


_INTERCEPTING_KEYS = (
    torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    | torch._C.DispatchKeySet(torch._C.DispatchKey.PythonTLSSnapshot)
    | RECORDING_KEY.keys
)


@contextmanager
def no_interception() -> Iterator[None]:
    """Context: no function mode, dispatch mode or autocast intercepts operators on real tensors."""
    no_keys = torch._C._ExcludeDispatchKeyGuard(_INTERCEPTING_KEYS)
    with torch._C.DisableTorchFunction(), torch._C._DisableAutocast(), no_keys:
        yield


@contextmanager
def _no_dispatch_modes() -> Iterator[None]:
    """Context: no dispatch mode is on. While one is, whether it sees an operator or not, C++ takes
    every tensor for a subclass, and some composites then run other kernels.
    """
    if not torch._C._len_torch_dispatch_stack():
        yield
        return
    with torch.utils._python_dispatch._disable_current_modes():
        yield


@contextmanager
def views_noted() -> Iterator[None]:
    """Context: views made here have their base, though an operation is being dispatched to Python,
    where torch does not note it any more.
    """
    key = torch._C.DispatchKey.ADInplaceOrView
    was_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, was_excluded)


def autocast_operators(device_type: str) -> list[str]:
    """The names of the aten operators that the installed torch autocasts on `device_type`."""
    key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}[device_type]
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return [name for name in names if name.startswith("aten::")]


FAKE_SLOT = torch._C._TorchDispatchModeKey.FAKE


def swap_fake_mode(mode: Any) -> Any:
    """Set this thread's FAKE mode to `mode` (or None); return the previous one.

    While there is a FAKE mode, C++ skips CUDA's lazy initialisation when a factory names ``cuda``.
    It also runs below all user modes (FlopCounterMode), wherever these were entered. A mode whose
    ``is_recording`` is true includes :data:`RECORDING_KEY` as long as it is there.
    """
    previous = torch._C._unset_dispatch_mode(FAKE_SLOT)
    if mode is not None:
        torch._C._set_dispatch_mode(mode)
    records = getattr(mode, "is_recording", False)
    if records is not getattr(previous, "is_recording", False):
        RECORDING_KEY.set_included(records)
    return previous


def current_fake_mode() -> Any:
    """The FAKE mode of this thread, or None."""
    return torch._C._get_dispatch_mode(FAKE_SLOT)


def swap_only_lift_cpu(value: bool) -> bool:
    """Set whether ``torch.tensor(data, device=...)`` moves its data by a dispatched operator, on
    this thread; return the previous setting.

    If it does not, the copy to ``cuda`` happens inside C++, where no mode can intercept it.
    """
    previous: bool = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(value)
    return previous


@contextmanager
def as_eager() -> Iterator[None]:
    """Context: operators on real tensors run without interception, and record no gradients."""
    with no_interception(), _no_dispatch_modes(), torch.inference_mode(False), torch.no_grad():
        yield
