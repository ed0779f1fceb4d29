"""The loss of a step, and its backward pass.

Input: the output of a module on fakes. Output: the loss; fake parameters with fake gradients.
Invariant: no real tensor gets a fake gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import tensors_in
from torchfake.observe import is_or_holds_fake

OWN_LOSS = "the output's loss"
GIVEN_LOSS = "the given loss"
SUM_OF_OUTPUT = "the sum of the output"
"""Losses of a step, as text."""


def default_loss(output: Any) -> torch.Tensor:
    """``output.loss``; the sum of several losses by name, as detectors have them; otherwise the sum
    of the first output tensor that requires a gradient.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    if isinstance(output, dict) and output and all(map(_is_loss, output.values())):
        return torch.stack([*output.values()]).sum()
    for tensor in tensors_in(output):
        if tensor.requires_grad:
            return tensor.sum()
    raise InputsError(
        "no output tensor requires a gradient, so there is nothing to train: give loss=, a "
        "function of the output, or set requires_grad on the parameters"
    )


def loss_text(output: Any) -> str:
    """What :func:`default_loss` takes of an output, as text."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return OWN_LOSS
    if isinstance(output, dict) and output and all(map(_is_loss, output.values())):
        return f"the sum of {', '.join(map(str, output))}"
    return SUM_OF_OUTPUT


def _is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()


def check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss)
        raise InputsError(
            f"a loss must be a tensor with one element, not {found}: give another loss="
        )


def run_backward(loss: torch.Tensor) -> None:
    """Run the backward pass from `loss`, if all leaves of the graph are fake: real leaves would get
    fake gradients.

    Raises:
        InputsError: if a leaf of the graph is a real tensor.
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
