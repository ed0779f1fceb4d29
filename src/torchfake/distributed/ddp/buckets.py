"""Gradients that are reduced together, in one flat tensor.

Input: parameters, and their assignment to buckets. Output: :class:`Bucket`. Invariant: the view for
each gradient has the layout of its parameter; a bucket is allocated when it is created.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from torchfake.observe import is_dense, metadata_of


class Bucket:
    """A flat tensor, and a view in it for each gradient."""

    def __init__(self, params: Sequence[torch.Tensor], indices: Sequence[int]) -> None:
        self.indices = list(indices)
        self._position = {index: position for position, index in enumerate(indices)}
        self.params: list[Any] = [params[i] for i in indices]
        first = self.params[0]
        size = sum(param.numel() for param in self.params)
        self.flat = torch.empty(size, dtype=first.dtype, device=first.device)
        self.views = self._views()
        self.num_pending = len(self.params)
        self.end: Any = None  # the running AllReduce

    def _views(self) -> list[torch.Tensor]:
        views, offset = [], 0
        with torch.no_grad():
            for param in self.params:
                if is_dense(metadata_of(param)):
                    view = self.flat.as_strided(param.shape, param.stride(), offset)
                else:
                    view = self.flat.narrow(0, offset, param.numel()).view(param.shape)
                views.append(view)
                offset += param.numel()
        return views

    def take_in(self, index: int, num_ranks: int, keeps_views: bool) -> None:
        """Put the gradient of a parameter, divided by the number of ranks, into the bucket."""
        position = self._position[index]
        param, view = self.params[position], self.views[position]
        grad = param.grad
        with torch.no_grad():
            if grad is None:
                view.zero_()
            elif _shares_memory(grad, view):
                view.div_(num_ranks)
            else:
                torch.mul(grad.detach(), 1.0 / num_ranks, out=view)
                if keeps_views:
                    param.grad = view

    def give_back(self, is_unused: Any, keeps_views: bool) -> None:
        """Set gradients to the sums over all ranks, except for parameters that no rank has used."""
        with torch.no_grad():
            for index, param, view in zip(self.indices, self.params, self.views, strict=True):
                if is_unused(index):
                    continue
                if keeps_views:
                    param.grad = view if param.grad is None else param.grad
                elif param.grad is None:
                    param.grad = torch.empty_like(param).copy_(view)
                else:
                    param.grad.copy_(view)

    def adopt_gradients(self) -> None:
        """Make existing gradients views of this bucket."""
        with torch.no_grad():
            for param, view in zip(self.params, self.views, strict=True):
                if param.grad is not None and not _shares_memory(param.grad, view):
                    view.copy_(param.grad)
                    param.grad = view


def _shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


class AllReduce:
    """A running all-reduce of a tensor over a group, on a separate stream, as with NCCL."""

    def __init__(self, tensor: torch.Tensor, group: Any, stream: Any) -> None:
        self._stream = stream
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            self._work = torch.distributed.all_reduce(tensor, group=group, async_op=True)

    def wait(self) -> None:
        """Make the current stream wait for the all-reduce."""
        self._work.wait()
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)


def communication_stream(device: torch.device) -> Any:
    """The stream of collectives; None on a device without streams."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None
