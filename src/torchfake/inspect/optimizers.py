"""The optimizer of a step: what a user names, made of a twin's parameters.

Enters: a name, a class, a function or an optimizer, and a twin. Leaves: a fresh optimizer.
Invariant: an optimizer that was given is not touched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from torchfake.errors import InputsError
from torchfake.inspect.overrides import one_line
from torchfake.inspect.subject import Twin


def optimizer_of(given: Any, twin: Twin) -> Optimizer | None:
    """An optimizer of the twin's parameters, as `given` says.

    Args:
        given: a name or class of torch.optim, a function of the parameters, an optimizer of the
            original's parameters (it is not touched), or None.
        twin: whose parameters are to be trained.

    Raises:
        InputsError: if there is no such optimizer, or it cannot be made of these parameters.
    """
    if given is None:
        return None
    if not any(p.requires_grad for p in twin.module.parameters()):
        raise InputsError("no parameter requires a gradient, so there is nothing to optimize")
    try:
        made = _made(given, twin)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, InputsError):
            raise
        raise InputsError(
            f"optimizer={given!r} cannot be made of these parameters: {one_line(error)}"
        ) from error
    if not isinstance(made, Optimizer):
        raise InputsError(
            f"optimizer={given!r} is none: give a name such as 'adamw', a class of torch.optim, a "
            "function of the parameters, or an optimizer"
        )
    if isinstance(made, torch.optim.LBFGS):
        raise InputsError("LBFGS runs the model as often as it likes, which no step shows")
    _run_as_on_cuda(made)
    return made


def _made(given: Any, twin: Twin) -> Any:
    if isinstance(given, Optimizer):
        make: Any = type(given)
        return make(_same_groups(given, twin))
    make = _named(given) if isinstance(given, str) else given
    return (
        make([p for p in twin.module.parameters() if p.requires_grad]) if callable(make) else None
    )


def _named(name: str) -> type[Optimizer]:
    known = {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
    }
    if name.lower() not in known:
        raise InputsError(f"torch.optim has no {name!r}; there are: {', '.join(sorted(known))}")
    return known[name.lower()]


def _run_as_on_cuda(optimizer: Optimizer) -> None:
    """Torch runs an optimizer on all tensors at once where they are on CUDA, which takes memory.

    It decides by the class of the parameters too, and does not know ours.
    """
    for group in optimizer.param_groups:
        undecided = group.get("foreach", True) is None and not group.get("fused")
        if undecided and group["params"] and group["params"][0].device.type == "cuda":
            group["foreach"] = True


def _same_groups(given: Optimizer, twin: Twin) -> list[dict[str, Any]]:
    """The groups of an optimizer, of the twin's parameters."""
    groups: list[dict[str, Any]] = []
    for group in given.param_groups:
        parameters = [twin.by_tensor.get(id(p)) for p in group["params"]]
        if any(p is None for p in parameters):
            raise InputsError(
                "the optimizer has parameters that are not the module's; make it of "
                "module.parameters()"
            )
        groups.append({**group, "params": parameters})
    return groups
