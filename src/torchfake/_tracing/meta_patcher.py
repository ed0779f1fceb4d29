"""``MetaAwareMethodsPatcher``: layers built on ``meta`` that still take real inputs.

Input: contexts entered and left, and ``unpatch``. Output: while a context is on, on this thread,
constructors make every parameter on ``meta``; until ``unpatch``, the forwards of ``nn.Linear`` and
``nn.Embedding`` work without weights. Invariant: when the last user of a replaced method is done,
the original method is restored; until then, the replacement behaves as the original for all other
layers and threads.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torchfake._core import modes
from torchfake._core.devices import META
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch.contexts import Restoring, holding, leave, shared, watch


class _MethodPatch:
    """One method of a class, replaced while it has users."""

    def __init__(self, owner: type, name: str, make: Callable[[Any, _MethodPatch], Any]) -> None:
        self.owner, self.name, self.make = owner, name, make
        self.users: set[Any] = set()
        self.original: Any = None  # the method, while it is replaced

    def acquire(self, user: Any) -> None:
        """Replace the method, if `user` is the first; may be called again after an interrupt."""
        if self.original is None:
            original = vars(self.owner)[self.name]
            self.replacement = self.make(original, self)
            self.original = original
        if not self.users:
            setattr(self.owner, self.name, self.replacement)
        self.users.add(user)

    def release(self, user: Any) -> None:
        """Restore the method, if `user` was the last; may be called again."""
        self.users.discard(user)
        if self.users or self.original is None:
            return
        # If other code has since wrapped the replacement, it stays there and calls the original.
        if vars(self.owner)[self.name] is self.replacement:
            setattr(self.owner, self.name, self.original)
        self.original = None


# Constructors.


def _on_meta(original: Any, _: _MethodPatch) -> Any:
    """A replacement of a constructor that passes ``device="meta"``."""
    position = list(inspect.signature(original).parameters).index("device")

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if modes.thread.meta_patchers:
            if len(args) > position:
                args = (*args[:position], META, *args[position + 1 :])
            else:
                kwargs["device"] = META
        return original(*args, **kwargs)

    return replacement


def _new_on_meta(original: Any, patch: _MethodPatch) -> Any:
    return staticmethod(_on_meta(original.__func__, patch))


def _data_on_meta(original: Any, _: _MethodPatch) -> Any:
    """A replacement of ``Parameter.__new__`` that moves its data to ``meta`` first."""
    make = original.__func__

    @functools.wraps(make)
    def replacement(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if modes.thread.meta_patchers:
            data = torch.empty(0, device=META) if data is None else data
            if isinstance(data, torch.Tensor) and not data.is_meta:
                data = data.detach().to(META)
        return make(cls, data, requires_grad)

    return staticmethod(replacement)


# Forwards.


def _lacks_weights(layer: Any, inputs: Any) -> bool:
    """Whether a layer's weight is on ``meta`` and its input is a tensor that is not.

    A proxy is not a tensor: it records the layer's call. Fake weights can be used with real inputs.
    """
    weight = layer.weight
    if not isinstance(inputs, torch.Tensor) or isinstance(weight, FakeTensor):
        return False
    return bool(weight.is_meta and not inputs.is_meta)


def _placeholder(result: torch.Tensor, inputs: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The output of a layer without weights: zeros, or unknown values if the input is fake."""
    if isinstance(inputs, FakeTensor):
        return inputs.new_empty(result.shape, dtype=dtype)
    return inputs.new_zeros(result.shape, dtype=dtype)


def _linear_forward(original: Any, patch: _MethodPatch) -> Any:
    @functools.wraps(original)
    def forward(self: nn.Linear, input: torch.Tensor) -> Any:
        if not (patch.users and _lacks_weights(self, input)):
            return original(self, input)
        types, device_type = (input.dtype, self.weight.dtype), input.device.type
        if torch.float64 in types or not torch.is_autocast_enabled(device_type):
            result = original(self, input.to("meta"))
            return _placeholder(result, input, result.dtype)
        result = original(self, input.to("meta", self.weight.dtype))
        return _placeholder(result, input, torch.get_autocast_dtype(device_type))

    return forward


def _embedding_forward(original: Any, patch: _MethodPatch) -> Any:
    @functools.wraps(original)
    def forward(self: nn.Embedding, input: torch.Tensor) -> Any:
        if not (patch.users and _lacks_weights(self, input)):
            return original(self, input)
        result = original(self, input.to("meta"))
        return _placeholder(result, input, result.dtype)

    return forward


_CONSTRUCTORS = [
    _MethodPatch(nn.Linear, "__init__", _on_meta),
    _MethodPatch(nn.Embedding, "__init__", _on_meta),
    _MethodPatch(nn.Parameter, "__new__", _data_on_meta),  # every other layer
    _MethodPatch(nn.UninitializedParameter, "__new__", _new_on_meta),
]
_FORWARDS = [
    _MethodPatch(nn.Linear, "forward", _linear_forward),
    _MethodPatch(nn.Embedding, "forward", _embedding_forward),
]
_lock = shared(threading.RLock())


class _Entry(Restoring):
    """One entry of a patcher."""

    def __init__(self, patcher: MetaAwareMethodsPatcher) -> None:
        self.patcher = patcher
        self.is_first = patcher not in _FORWARDS[0].users

    def change(self) -> None:
        with holding(_lock):
            for patch in _CONSTRUCTORS:
                patch.acquire(self)
            for patch in _FORWARDS:
                patch.acquire(self.patcher)
        modes.thread.meta_patchers.append(self)

    def restore(self) -> None:
        if self in modes.thread.meta_patchers:
            modes.thread.meta_patchers.remove(self)
        with holding(_lock):
            for patch in _CONSTRUCTORS:
                patch.release(self)

    def abandon(self) -> None:
        """Undo an entry whose ``with`` statement was interrupted before it bound the patcher to a
        name, so that nobody can call ``unpatch``.
        """
        self.restore()
        if self.is_first:
            self.patcher.unpatch()


def _leave_patcher(patcher: MetaAwareMethodsPatcher, *error: Any) -> None:
    entries = [entry for entry in modes.thread.meta_patchers if entry.patcher is patcher]
    if not entries:
        raise RuntimeError(
            "MetaAwareMethodsPatcher was exited, but is not active on this thread: __exit__ must "
            "follow an __enter__ on the same thread"
        )
    leave(entries[-1])


class _PatcherExit:
    """``__exit__`` of a patcher: a ``with`` statement gets an object that nothing else holds."""

    def __get__(self, patcher: Any, cls: Any = None) -> Callable[..., None]:
        if patcher is None:
            return _leave_patcher
        exit_ = functools.partial(_leave_patcher, patcher)
        patcher._latest_exit = weakref.ref(exit_)
        return exit_


class MetaAwareMethodsPatcher:
    """A context in which every new parameter is on ``meta``, whatever device is named.

    ``nn.Linear`` and ``nn.Embedding`` make their parameters on ``meta``; other layers make them as
    usual, and their data is freed at once. Buffers are real. The context applies to this thread,
    and may be entered again, inside itself or later.

    After the first entry, until :meth:`unpatch`, linear layers and embeddings whose weights are on
    ``meta`` take inputs that are not: the output has the shape and dtype that it would have with
    weights, and the input's device; its values are zeros, and it requires no grad. That is enough
    for a tracer. All other layers are torch's.

    The source is ``optimum.fx.parallelization``, where the class of this name replaces four
    methods of the two layers.

    >>> with MetaAwareMethodsPatcher() as patcher:
    ...     layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
    >>> layers[0].weight.device, layers[1].weight.device
    (device(type='meta'), device(type='meta'))
    >>> layers[0](torch.ones(2, 4)).shape, layers[0](torch.ones(2, 4)).device
    (torch.Size([2, 8]), device(type='cpu'))
    >>> patcher.unpatch()
    """

    __exit__ = _PatcherExit()

    def __enter__(self) -> MetaAwareMethodsPatcher:
        exit_ = self.__dict__.pop("_latest_exit", None)
        entry = _Entry(self)
        if exit_ is not None and exit_() is not None:
            entry._exit_ref = watch(exit_(), entry.abandon)
        try:
            entry.change()
        except BaseException:
            entry.abandon()
            raise
        return self

    def unpatch(self) -> None:
        """Restore the forwards, unless another patcher still needs them; may be called again."""
        try:
            self._release_forwards()
        except BaseException:
            self._release_forwards()
            raise

    def _release_forwards(self) -> None:
        with holding(_lock):
            for patch in _FORWARDS:
                patch.release(self)
