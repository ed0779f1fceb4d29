"""Optimizers of torch's own database, with each of their options, give eager's metadata."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_optimizers import optim_db

import torchfake
from tests.behaviour.conftest import linear, network
from tests.conftest import (
    assert_inside,
    assert_same_outside,
)
from torchfake import fake_mode

OPTIMIZER_SHORTFALLS = {
    "SparseAdam": "it wants sparse gradients, and fakes are strided",
}


OUTSIDE_SHORTFALLS = {
    ("ASGD", "foreach"): "it makes tensors on a device that C++ named, from none of the fakes",
}


_STATE_FOLLOWS_VALUES = {"LBFGS"}  # its history is as long as its line searches make it


_NEEDS_MATRICES = {"Muon"}


def optimizer_cases() -> list[Any]:
    cases = []
    for info in optim_db:
        inputs = info.optim_inputs_func(device="cpu")
        name = info.optim_cls.__name__
        for number, given in enumerate(inputs):
            cases.append(pytest.param(info, given.kwargs, id=f"{name}-{number}"))
            for implementation in info.supported_impls:
                if implementation in ("foreach", "fused"):
                    kwargs = {**given.kwargs, implementation: True}
                    cases.append(pytest.param(info, kwargs, id=f"{name}-{number}-{implementation}"))
    return cases


def optimize(optimizer_class: Any, kwargs: dict[str, Any], module: nn.Module, x: Any) -> Any:
    kwargs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    only = [p for p in module.parameters() if p.dim() == 2]
    matrices = optimizer_class.__name__ in _NEEDS_MATRICES
    optimizer = optimizer_class(only if matrices else module.parameters(), **kwargs)
    for _ in range(2):
        optimizer.zero_grad()
        loss = module(x).pow(2).mean()
        loss.backward()
        optimizer.step(*([lambda loss=loss: loss] if optimizer_class is torch.optim.LBFGS else []))
    if optimizer_class.__name__ in _STATE_FOLLOWS_VALUES:
        return module
    state = optimizer.state_dict()["state"]
    return module, [sorted(s.items()) for s in state.values()]


@pytest.mark.parametrize(("info", "kwargs"), optimizer_cases())
def test_optimizers(info: Any, kwargs: dict[str, Any]) -> None:
    """Two steps: parameters, gradients and the optimizer's state have eager's metadata."""
    name = info.optim_cls.__name__

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        return optimize(info.optim_cls, kwargs, module, x)

    if name not in OPTIMIZER_SHORTFALLS:
        assert_inside(lambda: use(*linear()))
    if name not in OPTIMIZER_SHORTFALLS and not any(
        (name, option) in OUTSIDE_SHORTFALLS for option in kwargs if kwargs[option] is True
    ):
        assert_same_outside(linear, use)
        return
    with fake_mode():
        made = linear()
    with pytest.raises((torchfake.errors.TorchFakeError, RuntimeError)):
        use(*made)


def test_every_optimizer_is_tested() -> None:
    """A new optimizer in torch.optim must be in the database."""
    public = {
        cls
        for cls in vars(torch.optim).values()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
    }
    assert public - {info.optim_cls for info in optim_db} == {torch.optim.Optimizer}


def test_optimizer_state_dict_round_trip() -> None:
    """Saved and loaded into another optimizer over fakes."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        optimizer = torch.optim.AdamW(module.parameters())
        module(x).sum().backward()
        optimizer.step()
        other = torch.optim.AdamW(module.parameters())
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        other.step()
        return [sorted(s.items()) for s in other.state_dict()["state"].values()]

    assert_same_outside(linear, use)


def test_training_helpers() -> None:
    """Clipping, gradient accumulation, schedulers, SWA averages, GradScaler left off."""

    def use(module: nn.Module, x: torch.Tensor) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        average = torch.optim.swa_utils.AveragedModel(module)
        for step in range(4):
            (module(x).sum() / 2).backward()
            if step % 2:
                norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                nn.utils.clip_grad_value_(module.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                scheduler.step()
                average.update_parameters(module)
        return module, average, norm

    assert_same_outside(network, use)
