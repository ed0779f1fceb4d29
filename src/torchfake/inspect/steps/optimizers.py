"""Creates the optimizer of a step for the parameters of a fake copy.

Input: a name, a class, a function or an optimizer, and a fake copy. Output: a new optimizer of the
copy's parameters. Invariant: the user's optimizer is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.records.units import bytes_text
from torchfake.inspect.steps.module_tensors import with_wrapped


def optimizer_of(given: Any, fake_copy: FakeCopy) -> Optimizer | None:
    """An optimizer of the parameters of a fake copy, as `given` describes it.

    Args:
        given: a name or class of torch.optim, a function of the parameters, an optimizer of the
            original's parameters (which is not changed), or None.
        fake_copy: the fake copy whose parameters are trained.

    Raises:
        InputsError: if there is no such optimizer, or it does not accept these parameters.
    """
    if given is None:
        return None
    make = partial(_make, given, fake_copy)
    return made_optimizer(make, fake_copy.module, f"optimizer={given!r}")


def made_optimizer(make: Callable[[Any], Any], module: nn.Module, name: str) -> Optimizer:
    """The optimizer that `make` creates, with torch's defaults for real parameters on the device.

    Args:
        make: creates the optimizer from the parameters that require gradients.
        module: the module on fakes whose parameters are trained.
        name: the option that describes the optimizer, for error messages.

    Raises:
        InputsError: if `make` fails, or does not return a supported optimizer.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise InputsError("no parameter requires a gradient, so there is nothing to optimize")
    try:
        made = make(parameters)
    except (TypeError, ValueError, RuntimeError, ImportError) as error:
        if isinstance(error, InputsError):
            raise
        raise InputsError(
            f"{name} cannot be made of these parameters: {one_line(error)}; in Python, optimizer= "
            "may be a function that picks the parameters that suit"
        ) from error
    if not isinstance(made, Optimizer):
        raise InputsError(
            f"{name} is not an optimizer: give a name such as 'adamw', a class of "
            "torch.optim, a function of the parameters, or an optimizer"
        )
    if isinstance(made, torch.optim.LBFGS):
        raise InputsError(lbfgs_refused(made))
    return made


def lbfgs_refused(optimizer: torch.optim.LBFGS) -> str:
    """The message that refuses LBFGS: its memory grows over many steps, depending on values."""
    group = optimizer.param_groups[0]
    pairs, num_bytes = group["history_size"], sum(p.nbytes for p in group["params"])
    held = bytes_text(2 * pairs * num_bytes)
    return (
        "LBFGS decides by values how often it runs the model in a step and what it remembers: up "
        f"to {pairs} pairs of vectors as long as all parameters, {held}. "
        "Estimate the function that it is given, as a step without an optimizer, and add these"
    )


def _make(given: Any, fake_copy: FakeCopy, parameters: list[nn.Parameter]) -> Any:
    if isinstance(given, Optimizer):
        optimizer_class: Any = type(given)
        if len([*with_wrapped(given)]) > 1:
            name = optimizer_class.__name__
            raise InputsError(
                f"the {name} holds other optimizers, and cannot be made again for a copy of the "
                f"parameters: give a function, optimizer=lambda parameters: {name}(parameters, ...)"
            )
        return optimizer_class(_copied_groups(given, fake_copy))
    make: Any = _optimizer_class(given) if isinstance(given, str) else given
    return make(parameters) if callable(make) else None


def _optimizer_class(name: str) -> type[Optimizer]:
    known: dict[str, type[Optimizer]] = {}
    for key, value in vars(torch.optim).items():
        if isinstance(value, type) and issubclass(value, Optimizer) and value is not Optimizer:
            known[key.lower()] = value
    if name.lower() not in known:
        names = ", ".join(sorted(known))
        raise InputsError(
            f"optimizer is {name!r}: torch.optim has no {name!r}; there are: {names}"
            f"{_elsewhere(name)}"
        )
    return known[name.lower()]


def _elsewhere(name: str) -> str:
    """How to give an optimizer whose name says that its state has 8 bits."""
    if "8bit" not in name.lower():
        return ""
    return (
        "; those with 8 bits are bitsandbytes', and given in Python alone: torchfake.estimate "
        "takes the function lambda params: bitsandbytes.optim.AdamW8bit(params) as its optimizer"
    )


def _copied_groups(given: Optimizer, fake_copy: FakeCopy) -> list[dict[str, Any]]:
    """The parameter groups of an optimizer, with the fake copies of its parameters."""
    groups: list[dict[str, Any]] = []
    for group in given.param_groups:
        parameters = [fake_copy.by_tensor.get(id(p)) for p in group["params"]]
        if any(p is None for p in parameters):
            raise InputsError(
                "the optimizer has parameters that are not the module's; make it of "
                "module.parameters()"
            )
        groups.append({**group, "params": parameters})
    return groups
