"""Which parameters a step has used, and the map of them that ranks exchange.

Input: the outputs of a forward pass; indices of parameters. Output: those that will get no
gradient; the two tensors of the map. Invariant: other ranks are taken to use the same parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch


class UsedMap:
    """A number for each parameter: whether a rank has used it."""

    def __init__(self, num_params: int, device: torch.device) -> None:
        self.on_host = torch.zeros(num_params, dtype=torch.int32, device="cpu")
        self.on_device = torch.empty(num_params, dtype=torch.int32, device=device)
        self.used: set[int] = set()
        self.is_read = False  # after the sum

    def send(self) -> torch.Tensor:
        """The map on the device, ready to be summed."""
        with torch.no_grad():
            source = self.on_host
            if self.on_device.device.type == "cuda":
                source = torch.empty_like(self.on_host, pin_memory=True).copy_(self.on_host)
            self.on_device.copy_(source, non_blocking=True)
        return self.on_device

    def is_unused(self, index: int, end: Any) -> bool:
        """Whether no rank has used a parameter; the first that this one has not used asks them."""
        if index in self.used:
            return False
        if not self.is_read:
            end.wait()
            with torch.no_grad():
                self.on_host.copy_(self.on_device)
            self.is_read = True
        return True

    def reset(self) -> None:
        """Nothing is used yet."""
        with torch.no_grad():
            self.on_host.fill_(0)
        self.used.clear()
        self.is_read = False


def without_gradient(outputs: Iterable[torch.Tensor], accumulators: Sequence[Any]) -> list[int]:
    """The parameters, by index, whose accumulators the graph of these outputs does not reach."""
    pending = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(pending)
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                pending.append(node)
    return [i for i, node in enumerate(accumulators) if node not in seen]
