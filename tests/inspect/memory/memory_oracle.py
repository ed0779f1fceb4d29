"""The oracle of memory: a real run, every storage counted by a dispatch mode.

Under a dispatch mode, the autograd engine and formulas of gradients write to new memory where they
otherwise write in place; ``_is_written_in_place`` says which results take over the memory of their
first argument. tests/inspect/storages/test_engine_writes.py compares that with runs without a mode.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_ZEROS = {aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default}


class LiveStorages(TorchDispatchMode):
    """The bytes of the storages that are alive, of those that were observed, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = self.peak_bytes = 0
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._zeros: set[int] = set()  # made by formulas of gradients
        self._uncounted: tuple[int, int] | None = None  # a result, if its first argument dies
        self._peak_if_held = 0  # the peak, if somebody holds that argument

    def observe(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._alive.get(key)
        if known is not None and known[1] == size:
            return
        ref = weakref.ref(storage, lambda _: self._died(key)) if known is None else known[0]
        self._alive[key] = (ref, size)
        self.num_bytes += size  # resized: both exist for a moment
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)
        self.num_bytes -= 0 if known is None else known[1]

    def _died(self, key: int) -> None:
        size = self._alive.pop(key)[1]
        self._zeros.discard(key)
        if self._uncounted == (key, size):
            self._uncounted = None  # its memory is that of the result from here on
        else:
            self.num_bytes -= size

    def begin(self) -> None:
        """An operator is called: what its predecessor may have written in place is held."""
        if self._uncounted is not None:
            self.num_bytes += self._uncounted[1]
            self.peak_bytes = self._peak_if_held
            self._uncounted = None

    def end(self, func: Any, args: Any, made: Iterable[torch.Tensor], frame: Any) -> None:
        """An operator, which was called from this frame, has returned these tensors."""
        peak_before, made = self.peak_bytes, list(made)
        for tensor in made:
            self.observe(tensor.untyped_storage())
        if len(made) != 1 or not _is_called_by_engine(frame):
            return
        if func in _ZEROS:
            self._zeros.add(made[0].untyped_storage()._cdata)
        elif self._is_written_in_place(func, args, made[0]):
            old = args[0].untyped_storage()
            self._uncounted = old._cdata, old.nbytes()
            self.num_bytes -= old.nbytes()
            self._peak_if_held, self.peak_bytes = self.peak_bytes, peak_before

    def _is_written_in_place(self, func: Any, args: Any, made: torch.Tensor) -> bool:
        """Whether an operator on a gradient, or on new zeros, is called in place without a mode,
        provided that nobody else holds the first argument.
        """
        if type(args[0]) is not torch.Tensor:
            return False
        old, new = args[0].untyped_storage(), made.untyped_storage()
        if old._cdata == new._cdata or old.nbytes() != new.nbytes():
            return False
        if func is aten.add.Tensor:
            return torch._C._current_autograd_node().name() not in _ADDING_NODES
        return old._cdata in self._zeros


class StorageCounter(LiveStorages):
    """Counts the bytes of storages that are alive: given ones, and those that operators make."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        for tensor in given:
            self.observe(tensor.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.begin()
        result = func(*args, **(kwargs or {}))
        made = (t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
        self.end(func, args, made, sys._getframe(1))
        return result


_ADDING_NODES = {"VarMeanBackward0", "StdMeanBackward0"}


def _is_called_by_engine(frame: Any) -> bool:
    backward = torch.autograd.graph._engine_run_backward.__code__
    while frame.f_globals.get("__name__") in ("torch._dynamo.eval_frame", "torch._compile"):
        frame = frame.f_back
    return frame.f_code is backward and not torch.is_grad_enabled()


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
