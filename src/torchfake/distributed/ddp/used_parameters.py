"""The parameters that a step has used, and the map of them that ranks exchange.

Input: the outputs of a forward pass; indices of parameters. Output: the parameters that get no
gradient; the two tensors of the map. Invariant: other ranks are assumed to use the same parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch


class UsedMap:
    """A map with a number for each parameter, which says whether a rank has used it."""

    def __init__(self, num_params: int, device: torch.device) -> None:
        self.on_host = torch.zeros(num_params, dtype=torch.int32, device="cpu")
        self.on_device = torch.empty(num_params, dtype=torch.int32, device=device)
        self.used: set[int] = set()
        self.is_read = False  # whether the sum over the ranks was copied to the host

    def send(self) -> torch.Tensor:
        """Copy the map to the device, to be summed over the ranks."""
        with torch.no_grad():
            source = self.on_host
            if self.on_device.device.type == "cuda":
                source = torch.empty_like(self.on_host, pin_memory=True).copy_(self.on_host)
            self.on_device.copy_(source, non_blocking=True)
        return self.on_device

    def is_unused(self, index: int, end: Any) -> bool:
        """Whether no rank has used a parameter; may wait for `end`, the sum over the ranks."""
        if index in self.used:
            return False
        if not self.is_read:
            end.wait()
            with torch.no_grad():
                self.on_host.copy_(self.on_device)
            self.is_read = True
        return True

    def reset(self) -> None:
        """Mark all parameters as unused."""
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
