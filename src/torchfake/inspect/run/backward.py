"""The loss of a step, and its backward pass.

Input: the output of a module on fakes. Output: its loss; gradients in fakes. Invariant: no real
tensor gets a fake gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchfake._tensor.copies import is_or_holds_fake
from torchfake.errors import InputsError
from torchfake.inspect.run.workload import tensors_in


def default_loss(output: Any) -> torch.Tensor:
    """``output.loss`` where there is one; else the sum of the first tensor with a gradient."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    for tensor in tensors_in(output):
        if tensor.requires_grad:
            return tensor.sum()
    raise InputsError(
        "no output tensor requires a gradient, so there is nothing to train: give loss=, a "
        "function of the output, or set requires_grad on the parameters"
    )


def check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss)
        raise InputsError(
            f"a loss must be a tensor with one element, not {found}: give another loss="
        )


def run_backward(loss: torch.Tensor) -> None:
    """Run the backward pass of a graph whose leaves are all fake: real leaves would get fake
    gradients.

    Raises:
        InputsError: naming the first real leaf.
    """
    seen, nodes = set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not is_or_holds_fake(leaf):
            raise InputsError(
                f"a real tensor of shape {list(leaf.shape)} that requires a gradient takes part "
                "and is not the module's, so its gradient would be fake: make it a parameter of "
                "the module (a loss's own layers too), or use it under torch.no_grad()"
            )
        nodes += [next_node for next_node, _ in node.next_functions]
    loss.backward()
