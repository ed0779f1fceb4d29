"""The oracle of memory: a real run, every storage counted by a dispatch mode."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class StorageCounter(TorchDispatchMode):
    """Counts the bytes of storages that are alive: given ones, and those that operators make."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.num_bytes = self.peak_bytes = 0
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        for tensor in given:
            self.observe(tensor.untyped_storage())

    def observe(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._alive.get(key)
        if known is not None and known[1] == size:
            return
        if known is not None:  # resized: both exist for a moment
            self.num_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.num_bytes)
            self.num_bytes -= known[1]
            self._alive[key] = (known[0], size)
            return

        def freed(_: Any) -> None:
            self.num_bytes -= self._alive.pop(key)[1]

        self._alive[key] = (weakref.ref(storage, freed), size)
        self.num_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.observe(tensor.untyped_storage())
        return result


def state_of(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    if optimizer is None:
        return []
    return [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]


def loss_of(output: Any) -> torch.Tensor:
    if getattr(output, "loss", None) is not None:
        return output.loss
    return output.sum() if torch.is_tensor(output) else output[0].sum()


def training_peaks(
    model: nn.Module,
    inputs: dict[str, Any],
    make: Callable[[Any], torch.optim.Optimizer] | None,
    *,
    autocast: torch.dtype | None = None,
    accumulate: int = 1,
    keep_gradients: bool = False,
) -> tuple[int, int]:
    """The peaks of the first step and of the second, in a plain loop on the CPU."""
    model.train()
    optimizer = None if make is None else make([p for p in model.parameters() if p.requires_grad])
    held = [*model.parameters(), *model.buffers(), *inputs.values(), *state_of(optimizer)]
    counter = StorageCounter(held)

    def step() -> None:
        model.zero_grad(set_to_none=not keep_gradients)
        for _ in range(accumulate):
            with _autocast(autocast):
                output = model(**inputs)
                loss = loss_of(output) if accumulate == 1 else loss_of(output) / accumulate
            loss.backward()
        if optimizer is not None:
            optimizer.step()

    with counter:
        step()
        first, counter.peak_bytes = counter.peak_bytes, 0
        step()
    return first, max(counter.peak_bytes, counter.num_bytes)


def _autocast(dtype: torch.dtype | None) -> Any:
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)


def forward_peak(
    model: nn.Module, inputs: dict[str, Any], *, grad: bool, autocast: torch.dtype | None = None
) -> int:
    """The peak of one pass, its graph kept if `grad`."""
    counter = StorageCounter([*model.parameters(), *model.buffers(), *inputs.values()])
    with counter, torch.set_grad_enabled(grad), _autocast(autocast):
        output = model(**inputs)
    del output
    return counter.peak_bytes
