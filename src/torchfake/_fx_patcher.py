"""Models built on ``meta`` whose linear layers and embeddings still take real inputs.

Enters: contexts entered and left. Leaves: constructors that make parameters on ``meta`` meanwhile,
on this thread, and two forwards that do without weights until they are given back. Invariant: when
nobody needs a replacement any more, what was there before is back, the same object; and while it is
there, it is what was there before to all whom it does not concern.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn

from torchfake import _state
from torchfake._device import META
from torchfake._tensor import FakeTensor


class _Replacement:
    """One attribute of a class, replaced as long as somebody needs that."""

    def __init__(self, owner: type, name: str, make: Callable[[Any, _Replacement], Any]) -> None:
        self.owner, self.name, self.make = owner, name, make
        self.num_holders = 0

    def hold(self) -> None:
        if not self.num_holders:
            self.original = vars(self.owner)[self.name]
            self.ours = self.make(self.original, self)
            setattr(self.owner, self.name, self.ours)
        self.num_holders += 1

    def release(self) -> None:
        self.num_holders -= 1
        # Where somebody has replaced ours since, it stays below theirs, and does nothing.
        if not self.num_holders and vars(self.owner)[self.name] is self.ours:
            setattr(self.owner, self.name, self.original)


# Constructors.


def _on_meta(original: Any, _: _Replacement) -> Any:
    """A constructor that takes a device, given ``meta``."""
    position = list(inspect.signature(original).parameters).index("device")

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if _state.thread.num_patchers:
            if len(args) > position:
                args = (*args[:position], META, *args[position + 1 :])
            else:
                kwargs["device"] = META
        return original(*args, **kwargs)

    return replacement


def _new_on_meta(original: Any, replaced: _Replacement) -> Any:
    return staticmethod(_on_meta(original.__func__, replaced))


def _of_meta_data(original: Any, _: _Replacement) -> Any:
    """``Parameter.__new__`` for data that is moved to ``meta`` first."""
    make = original.__func__

    @functools.wraps(make)
    def replacement(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if _state.thread.num_patchers:
            data = torch.empty(0, device=META) if data is None else data
            is_there = not isinstance(data, torch.Tensor) or data.is_meta
            data = data if is_there else data.detach().to(META)
        return make(cls, data, requires_grad)

    return staticmethod(replacement)


# Forwards.


def _lacks_weights(layer: Any, inputs: Any) -> bool:
    """Whether a layer has no values to work on inputs that do, or are where values could be.

    Proxies are no tensors: they record the layer. Fakes take real tensors beside them.
    """
    weight = layer.weight
    if not isinstance(inputs, torch.Tensor) or isinstance(weight, FakeTensor):
        return False
    return bool(weight.is_meta and not inputs.is_meta)


def _stands_for(result: torch.Tensor, inputs: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What a layer gives that has no weights: zeros, or of a fake, values that nobody knows."""
    if isinstance(inputs, FakeTensor):
        return inputs.new_empty(result.shape, dtype=dtype)
    return inputs.new_zeros(result.shape, dtype=dtype)


def _linear_forward(original: Any, replaced: _Replacement) -> Any:
    @functools.wraps(original)
    def forward(self: nn.Linear, input: torch.Tensor) -> Any:
        if not (replaced.num_holders and _lacks_weights(self, input)):
            return original(self, input)
        types, device_type = (input.dtype, self.weight.dtype), input.device.type
        if torch.float64 in types or not torch.is_autocast_enabled(device_type):
            result = original(self, input.to("meta"))
            return _stands_for(result, input, result.dtype)
        result = original(self, input.to("meta", self.weight.dtype))
        return _stands_for(result, input, torch.get_autocast_dtype(device_type))

    return forward


def _embedding_forward(original: Any, replaced: _Replacement) -> Any:
    @functools.wraps(original)
    def forward(self: nn.Embedding, input: torch.Tensor) -> Any:
        if not (replaced.num_holders and _lacks_weights(self, input)):
            return original(self, input)
        result = original(self, input.to("meta"))
        return _stands_for(result, input, result.dtype)

    return forward


_CONSTRUCTORS = [
    _Replacement(nn.Linear, "__init__", _on_meta),
    _Replacement(nn.Embedding, "__init__", _on_meta),
    _Replacement(nn.Parameter, "__new__", _of_meta_data),  # every other layer
    _Replacement(nn.UninitializedParameter, "__new__", _new_on_meta),
]
_FORWARDS = [
    _Replacement(nn.Linear, "forward", _linear_forward),
    _Replacement(nn.Embedding, "forward", _embedding_forward),
]
_lock = threading.RLock()


class MetaAwareMethodsPatcher:
    """A context in which every parameter that is made is on ``meta``, whatever device is named.

    ``nn.Linear`` and ``nn.Embedding`` never make anything else; other layers make theirs as ever,
    and it is let go at once. Buffers are real. The context holds for this thread, and may be
    entered again, inside itself or later.

    From then on, until :meth:`unpatch`, linear layers and embeddings whose weights are on ``meta``
    take inputs that are not: the output has the shape and the dtype it would have, and the input's
    device; its values are zeros, and it requires no grad. That is enough for a tracer. All other
    layers are torch's.

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

    def __init__(self) -> None:
        self._holds_forwards = False

    def __enter__(self) -> MetaAwareMethodsPatcher:
        with _lock:
            held: list[_Replacement] = []
            try:
                for replaced in _CONSTRUCTORS + ([] if self._holds_forwards else _FORWARDS):
                    replaced.hold()
                    held.append(replaced)
            except BaseException:  # Ctrl-C half way through: none rather than some
                for replaced in reversed(held):
                    replaced.release()
                raise
            self._holds_forwards = True
        _state.thread.num_patchers += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _state.thread.num_patchers -= 1
        with _lock:
            for replaced in _CONSTRUCTORS:
                replaced.release()

    def unpatch(self) -> None:
        """Give the forwards back, unless another patcher still needs them. Once is enough."""
        with _lock:
            if self._holds_forwards:
                for replaced in _FORWARDS:
                    replaced.release()
            self._holds_forwards = False
