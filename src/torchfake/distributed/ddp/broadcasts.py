"""Parameters, buffers and numbers of the first rank, sent to the others.

Input: tensors, or a number of integers. Output: none, since values of fakes are not known.
Invariant: tensors are sent in flat copies of limited size, at most two of which exist at a time, as
in torch/csrc/distributed/c10d/comm.cpp.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from torchfake._torch.distributed.training import bucket_assignment, flattened, unflattened

_MOST_AT_ONCE = 2


def broadcast_coalesced(group: Any, tensors: list[torch.Tensor], num_bytes: int, src: int) -> None:
    """Send `tensors` of rank `src` of the group, copied into flat tensors of `num_bytes`."""
    running: deque[_Broadcast] = deque()
    with torch.no_grad():
        for indices in bucket_assignment(tensors, [num_bytes], None):
            if len(running) == _MOST_AT_ONCE:
                running.popleft().finish()
            running.append(_Broadcast([tensors[i] for i in indices], group, src))
        while running:
            running.popleft().finish()


class _Broadcast:
    def __init__(self, tensors: list[torch.Tensor], group: Any, src: int) -> None:
        self._tensors = tensors
        self._flat = flattened(tensors)
        self._work = torch.distributed.broadcast(
            self._flat, group=group, group_src=src, async_op=True
        )

    def finish(self) -> None:
        self._work.wait()
        parts = unflattened(self._flat, self._tensors)
        for tensor, part in zip(self._tensors, parts, strict=True):
            if part.numel():
                tensor.copy_(part, non_blocking=True)


def broadcast_numbers(how_many: int, beside: torch.Tensor, group: Any) -> None:
    """Send `how_many` integers of the first rank, on the device of the tensor `beside`."""
    with torch.no_grad():
        on_host = torch.empty(how_many, dtype=torch.int32, device="cpu")
        on_device = torch.empty(how_many, dtype=torch.int32, device=beside.device)
        on_device.copy_(on_host, non_blocking=True)
        torch.distributed.broadcast(on_device, group=group, group_src=0)
        on_host.copy_(on_device)
