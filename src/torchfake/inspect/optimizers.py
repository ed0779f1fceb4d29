"""The optimizer of a step: what a user names, made of a twin's parameters.

Enters: a name, a class, a function or an optimizer, and a twin. Leaves: a fresh optimizer.
Invariant: an optimizer that was given is not touched.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake.errors import InputsError
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
    if isinstance(given, Optimizer):
        return _remade(given, twin)
    parameters = [p for p in twin.module.parameters() if p.requires_grad]
    if not parameters:
        raise InputsError("no parameter requires a gradient, so there is nothing to optimize")
    if isinstance(given, str):
        given = _named(given)
    if isinstance(given, type) and issubclass(given, Optimizer):
        return given(parameters, **_as_on_device(given, parameters))
    made = given(parameters) if callable(given) else None
    if not isinstance(made, Optimizer):
        raise InputsError(
            f"optimizer={given!r} is none: give a name such as 'adamw', a class of torch.optim, a "
            "function of the parameters, or an optimizer"
        )
    return made


def _named(name: str) -> type[Optimizer]:
    known = {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer
    }
    if name.lower() not in known:
        raise InputsError(f"torch.optim has no {name!r}; there are: {', '.join(sorted(known))}")
    return known[name.lower()]


def _as_on_device(cls: type[Optimizer], parameters: list[nn.Parameter]) -> dict[str, Any]:
    """Torch runs an optimizer on all tensors at once where they are on CUDA, which takes memory.

    It decides by the class of the parameters too, and does not know ours.
    """
    takes = inspect.signature(cls).parameters
    if "foreach" not in takes or parameters[0].device.type != "cuda":
        return {}
    return {"foreach": True}


def _remade(given: Optimizer, twin: Twin) -> Optimizer:
    """The same optimizer, fresh, of the twin's parameters."""
    groups: list[dict[str, Any]] = []
    for group in given.param_groups:
        parameters = [twin.by_tensor.get(id(p)) for p in group["params"]]
        if any(p is None for p in parameters):
            raise InputsError(
                "the optimizer has parameters that are not the module's; make it of "
                "module.parameters()"
            )
        groups.append({**group, "params": parameters})
    for group in groups:
        on_cuda = group["params"] and group["params"][0].device.type == "cuda"
        if group.get("foreach", True) is None and on_cuda and not group.get("fused"):
            group["foreach"] = True
    return type(given)(groups)  # type: ignore[call-arg]
