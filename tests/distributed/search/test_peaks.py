"""``fit`` of a plan: what it says of one GPU is what ``fit`` says of an estimate, and of more, what
plans of these sizes say.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F

from torchfake import CudaProfile, fake_mode
from torchfake.distributed import Plan, plan, plan_target
from torchfake.errors import InputsError
from torchfake.inspect import estimate, fit
from torchfake.inspect.memory.fit import Fit, Fits

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

CARD = CudaProfile("My Card", 3 * 10**9, 8, 0, 100, "made up")


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))


class Short(nn.Module):
    """It has 600 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 64), nn.Embedding(600, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return F.linear(x, self.tokens.weight)


class Alone(nn.Linear):
    """It needs no inputs."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def rows() -> torch.Tensor:
    return torch.empty(16, 1024)


def of_batch(batch: int = 16) -> torch.Tensor:
    assert batch % 16 == 0
    return torch.empty(batch, 1024)


def planned(build: Any = layers, mesh: int = 1, inputs: Any = rows, **options: Any) -> Plan:
    def shard(module: Any, mesh: Any) -> None:
        fully_shard(module, mesh=mesh)

    options = {"gpu": CARD, "optimizer": "adamw", "parallelize": shard, **options}
    if mesh == 1:
        del options["parallelize"]
    return plan(build, mesh_shape=mesh, inputs=inputs, **options)


@pytest.mark.parametrize("inputs", [rows, torch.empty(16, 1024), {"input": torch.empty(16, 1024)}])
def test_a_mesh_of_one_is_a_single_gpu(inputs: Any) -> None:
    gpus = CARD, "t4-16gb", "h100-80gb"
    with fake_mode():
        alone = fit(estimate(layers(), rows(), optimizer="adamw", gpu=CARD), *gpus)
    found = fit(planned(inputs=inputs), *gpus)
    assert found.items == without_times(alone)
    assert str(found).splitlines()[0] == str(alone).splitlines()[0]


def without_times(fits: Fits) -> tuple[Fit, ...]:
    """As of a plan, whose ranks wait for each other: its times are not those of a GPU alone."""
    assert all(each.step_seconds is not None for each in fits if each.gpu != CARD.name)
    return tuple(replace(each, step_seconds=None) for each in fits)


def test_the_longest_sequence_of_a_mesh_of_one_is_that_of_a_single_gpu() -> None:
    def tokens() -> torch.Tensor:
        return torch.zeros(2, 100, dtype=torch.int64)

    with fake_mode():
        alone = fit(estimate(Short(), tokens(), mode="training", gpu=CARD), CARD, vary="seq")
    found = fit(planned(Short, inputs=tokens, optimizer=None), CARD, vary="seq")
    assert found.items == without_times(alone)
    assert (found[0].largest, found[0].limited_by) == (600, "model")


def test_the_largest_batch_of_a_rank_fits_and_the_next_does_not() -> None:
    (fitted,) = found = fit(planned(mesh=4), CARD)
    assert (fitted.vary, fitted.size, fitted.limited_by) == ("batch", 16, "memory")
    largest = fitted.largest
    assert planned(mesh=4, inputs=torch.empty(largest, 1024)).fits
    assert not planned(mesh=4, inputs=torch.empty(largest + 1, 1024)).fits
    assert re.search(r"^mesh +4 ranks: dp 4$", str(found), re.MULTILINE)
    assert "max batch of a rank" in str(found)


def test_inputs_are_made_anew_by_a_function_of_the_batch() -> None:
    (fitted,) = fit(planned(inputs=of_batch), CARD)
    (resized,) = fit(planned(inputs=rows), CARD)
    assert fitted.largest == resized.largest // 16 * 16


def test_the_kind_of_rank_with_the_most_reserved_decides() -> None:
    def uneven() -> nn.Module:
        return nn.Sequential(nn.Linear(1024, 4097), nn.ReLU(), nn.Linear(4097, 1024))

    found = planned(uneven, 4)
    assert len(found.by_ranks) > 1
    assert fit(found, CARD, vary=None)[0].peak_reserved_bytes == found.peak_reserved_bytes


def test_the_micro_batch_of_a_target() -> None:
    """Of three micro-batches two are run, here and there."""
    sizes = "num_hidden_layers=1", "hidden_size=64", "intermediate_size=64", "vocab_size=99"
    found = plan_target(
        "transformers:LlamaForCausalLM", gpus=2, gpu=CARD, seq=64, batch=6, micro_batch=1,
        overrides=(*sizes, "num_attention_heads=2", "num_key_value_heads=2"),
    )  # fmt: skip
    (fitted,) = fit(found, CARD)
    assert (fitted.size, fitted.limited_by) == (1, "memory")
    assert fitted.peak_reserved_bytes == found.plan.peak_reserved_bytes


def test_a_plan_that_cannot_be_fitted_says_what_to_do() -> None:
    with pytest.raises(InputsError, match=r'without GPUs .* plan it without device="cpu"'):
        fit(planned(gpu=None, device="cpu"), CARD)
    with pytest.raises(InputsError, match=r"no input has a seq.*inputs=lambda seq="):
        fit(planned(), CARD, vary="seq")
    with pytest.raises(InputsError, match=r"no input has a batch.*inputs=lambda batch="):
        fit(planned(Alone, inputs=None), CARD)
    with pytest.raises(TypeError, match="the result of estimate or plan, not a int"):
        fit(3, CARD)


def stages(model: Any, mesh: Any) -> Any:
    rank, device = mesh.get_local_rank(), torch.device(mesh.device_type)
    part = nn.Sequential(*list(model)[3 * rank : 3 * rank + 3])
    stage = PipelineStage(part, rank, 2, device, group=mesh.get_group())
    return Schedule1F1B(stage, 4, loss_fn=F.mse_loss)


@pytest.mark.parametrize("target", [rows(), rows])
def test_the_target_of_a_pipeline_varies_with_its_inputs(target: Any) -> None:
    """Micro-batches are of one size: batches are multiples of the one that was planned."""

    def planned_with(inputs: Any, target: Any) -> Plan:
        return plan(
            lambda: nn.Sequential(*layers(), *layers()), mesh_shape=2, mesh_dim_names=("pp",),
            parallelize=stages, inputs=inputs, target=target, gpu=CARD, optimizer="adamw",
        )  # fmt: skip

    (fitted,) = fit(planned_with(rows, target), CARD)
    assert fitted.largest
    assert fitted.largest % 16 == 0
    for size, fits in ((fitted.largest, True), (fitted.largest + 16, False)):
        assert planned_with(torch.empty(size, 1024), torch.empty(size, 1024)).fits == fits
