"""Optimizers: however they are given, a new one of the fake copy's parameters is run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.inspect.memory.memory_oracle import training_peaks
from tests.inspect.small_models import model_and_inputs
from torchfake.errors import InputsError
from torchfake.inspect import estimate


def test_optimizers_on_cuda_use_foreach() -> None:
    model, inputs = model_and_inputs("vit")
    found = estimate(model, inputs, optimizer="adamw", device="cuda")
    assert any(op.startswith("aten._foreach_") for op in found.lives.op)
    same = estimate(model, inputs, optimizer=torch.optim.AdamW(model.parameters()), device="cuda")
    assert same.peak_bytes == found.peak_bytes


_DENSE = [
    kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and name not in ("LBFGS", "Optimizer", "SparseAdam")
]


@pytest.mark.parametrize("kind", _DENSE)
def test_foreach_is_the_default_of_the_optimizers_that_ask_torch(kind: Any) -> None:
    """Adafactor and Muon update parameter by parameter, also on CUDA."""
    made = partial(kind, maximize=True) if kind is torch.optim.SGD else kind  # needs a temporary
    ops = estimate(nn.Linear(8, 8, bias=False), torch.ones(8), optimizer=made, device="cuda").lives
    asks = "_default_to_fused_or_foreach" in vars(sys.modules[inspect.unwrap(kind.step).__module__])
    assert any("_foreach_" in op for op in ops.op) == asks


def test_an_optimizer_of_the_module_itself() -> None:
    model, inputs = model_and_inputs("vit")
    groups = [
        {"params": list(model.vit.parameters()), "lr": 1e-3},
        {"params": list(model.classifier.parameters()), "amsgrad": True},
    ]
    optimizer = torch.optim.Adam(groups, lr=1e-4)
    found = estimate(model, inputs, optimizer=optimizer)
    assert not optimizer.state
    params = {id(p): i for i, p in enumerate(model.parameters())}

    def same(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        mine = [
            {**group, "params": [parameters[params[id(p)]] for p in group["params"]]}
            for group in optimizer.param_groups
        ]
        return torch.optim.Adam(mine)

    assert (found.first_step_peak_bytes, found.peak_bytes) == training_peaks(model, inputs, same)


def test_all_ways_to_give_an_optimizer_are_equal() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    ways = [
        "adamw",
        torch.optim.AdamW,
        torch.optim.AdamW(model.parameters()),
        partial(torch.optim.AdamW, lr=1e-4),
    ]
    x = torch.ones(2, 64)
    assert len({estimate(model, x, optimizer=o, gpu="a100-40gb").peak_bytes for o in ways}) == 1


def test_an_optimizer_that_a_function_makes_is_named_by_its_class() -> None:
    given = estimate(nn.Linear(4, 4), torch.ones(4), optimizer=lambda p: torch.optim.RAdam(p))
    assert given.counted.optimizer == "radam"
    assert "training with radam" in str(given)


@pytest.mark.parametrize("name", ["lbfgs", "muon"])
def test_optimizers_that_cannot_be_run(name: str) -> None:
    with pytest.raises(InputsError, match=r"LBFGS|cannot be made of these parameters"):
        estimate(nn.Linear(3, 3), torch.ones(2, 3), optimizer=name)


def test_optimizers_that_do_not_fit_the_module() -> None:
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    with pytest.raises(InputsError, match=r"torch.optim has no 'adamz'; there are: .*adamw"):
        estimate(layer, x, optimizer="adamz")
    with pytest.raises(
        InputsError, match=r"the function lambda params: bitsandbytes\.optim\.AdamW8bit"
    ):
        estimate(layer, x, optimizer="adamw8bit")
    with pytest.raises(InputsError, match="no parameter requires a gradient"):
        estimate(nn.Linear(3, 4).requires_grad_(False), x, optimizer="sgd")
    with pytest.raises(InputsError, match="parameters that are not the module's"):
        estimate(layer, x, optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters()))
    with pytest.raises(InputsError, match="is not an optimizer: give a name"):
        estimate(layer, x, optimizer=3)


class Offloading(torch.optim.Optimizer):
    """Optimizers of single parameters behind the face of one, as torchao's CPUOffloadOptimizer is:
    the constructor of the base class is not called.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.by_parameter = {p: torch.optim.AdamW([p]) for p in parameters}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for each in self.by_parameter.values() for group in each.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.by_parameter.values():
            each.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for each in self.by_parameter.values():
            each.zero_grad(set_to_none)


def test_an_optimizer_that_holds_others() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), torch.ones(4, 64)
    found = estimate(model, x, optimizer=Offloading, device="cuda")
    same = estimate(model, x, optimizer="adamw", device="cuda")
    state = "optimizer state"
    assert (
        found.timeline.num_bytes[-1][found.timeline.categories.index(state)]
        == (same.timeline.num_bytes[-1][same.timeline.categories.index(state)])
    )
    optimizer = Offloading(model.parameters())
    with pytest.raises(InputsError, match=r"optimizer=lambda parameters: Offloading\(parameters"):
        estimate(model, x, optimizer=optimizer)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    program = estimate(step, x)
    assert program.mode == "training"
    assert program.by_module["0"][state] == 2 * (64 * 64 + 64) * 4 + 2 * 4
