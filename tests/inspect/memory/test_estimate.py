"""Accounting of a step: the peak by category and module, devices, GPUs, JSON and pandas."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.inspect.small_models import model_and_inputs
from torchfake import deferred_init, fake_like, fake_mode, profiles
from torchfake._torch import kernels
from torchfake.inspect import estimate


def test_categories_and_modules_add_up_to_the_peak() -> None:
    model, inputs = model_and_inputs("gpt2")
    found = estimate(model, inputs, optimizer="adamw")
    peak = found.peak
    assert sum(peak.by_category.values()) == found.peak_bytes == found.timeline.total.max()
    assert sum(n for own in found.by_module.values() for n in own.values()) == found.peak_bytes
    sizes = sum(p.nbytes for p in model.parameters())
    assert peak.by_category["parameters"] == sizes
    state = peak.by_category["optimizer state"]
    assert state == 2 * sizes + 4 * len(list(model.parameters()))  # and a step count each
    owners = {name for name, own in found.by_module.items() if "parameters" in own}
    assert owners == {n for n, m in model.named_modules() if m._parameters} - {"lm_head"}


def test_categories_of_a_plain_step() -> None:
    layer, x = nn.Linear(100, 50, bias=False), torch.empty(10, 100)
    found = estimate(layer, x, optimizer="sgd", loss=lambda out: out.sum())
    timeline = found.timeline
    most = dict(zip(timeline.categories, timeline.num_bytes.max(axis=0).tolist(), strict=True))
    weight = 100 * 50 * 4
    assert most["parameters"] == most["gradients"] == weight
    assert most["inputs"] == 10 * 100 * 4
    assert most["activations"] == 10 * 50 * 4 + 4  # the output, and the loss


@pytest.mark.parametrize("kind", ["real", "fake", "deferred"])
def test_every_kind_of_module_gives_the_same(kind: str) -> None:
    from torchfake import is_deferred

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    if kind == "fake":
        with fake_mode():
            model = build()
    else:
        model = build() if kind == "real" else deferred_init(build)
    found = estimate(model, torch.randn(4, 8), optimizer="adamw")
    assert found.peak_bytes == estimate(build(), torch.randn(4, 8), optimizer="adamw").peak_bytes
    if kind == "deferred":
        assert is_deferred(model)
        assert model[1].num_batches_tracked.item() == 0


def test_on_a_gpu_that_this_machine_does_not_have() -> None:
    model, inputs = model_and_inputs("gpt2")
    found = estimate(model, inputs, optimizer="adamw", gpu="h100-80gb")
    assert found.device == "cuda:0"
    assert found.gpu == profiles()["h100-80gb"]
    assert found.round_to == 512
    is_kept = kernels.cublas_workspace_is_kept()  # else it is allocated for each product
    assert found.workspace_bytes == is_kept * 2 * 32 * 2**20
    assert found.elsewhere["cpu"] > 0  # the step counts of the optimizer
    assert (found.sizes % 512 == 0).all()
    exact = estimate(model, inputs, optimizer="adamw", device="cuda", round_to=1, workspace_bytes=0)
    assert exact.workspace_bytes == 0
    assert exact.peak_bytes < found.peak_bytes - found.workspace_bytes
    assert estimate(model, inputs, gpu="a100-80gb").workspace_bytes == is_kept * 8_519_680


def test_json_and_pandas() -> None:
    import json

    model, inputs = model_and_inputs("vit")
    found = estimate(model, inputs, optimizer="adamw")
    said: dict[str, Any] = json.loads(json.dumps(found.to_dict()))
    assert said["peak_bytes"] == found.peak_bytes
    assert said["peak"]["by_category"] == found.peak.by_category
    frame = pytest.importorskip("pandas") and found.to_pandas()
    assert len(frame) == len(found.lives.op)
    alive = frame[(frame.born <= found.peak.event) & (frame.died > found.peak.event)]
    assert alive.num_bytes.sum() == found.peak_bytes


def test_a_module_and_inputs_on_meta() -> None:
    with torch.device("meta"):
        layer, x = nn.Linear(1 << 20, 1 << 20), torch.empty(4, 1 << 20)
    found = estimate(layer, x, optimizer="sgd", device="cuda")
    assert found.peak.by_category["parameters"] == 4 * ((1 << 40) + (1 << 20))


def test_fakes_on_two_devices() -> None:
    model = fake_like(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)))
    model[0] = fake_like(nn.Linear(64, 64), device="cuda:1")

    class Across(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner[1](self.inner[0](x.to("cuda:1")).to("cpu"))

    found = estimate(Across(), torch.ones(4, 64), optimizer="sgd")
    assert found.device == "cuda:1"
    assert found.elsewhere["cpu"] >= 4 * (64 * 8 + 8)


def test_errors_of_the_module_are_raised_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        estimate(nn.Linear(3, 4), torch.ones(2, 5))


LABELS = torch.zeros(2, dtype=torch.int64)
WEIGHTED = nn.CrossEntropyLoss(weight=torch.ones(4))
LOSSES = (lambda out: F.cross_entropy(out, LABELS), partial(WEIGHTED, target=LABELS))


@pytest.mark.parametrize("loss", LOSSES)
def test_tensors_that_a_loss_refers_to_are_copied_as_inputs_are(loss: Any) -> None:
    layer, x = nn.Linear(8, 4), torch.ones(2, 8)
    found = estimate(layer, x, optimizer="sgd", loss=loss, gpu="l4-24gb", round_to=1)
    referred = LABELS.nbytes + (WEIGHTED.weight.nbytes if isinstance(loss, partial) else 0)
    assert found.peak.by_category["inputs"] == x.nbytes + referred


def test_a_loss_may_refer_to_the_model() -> None:
    layer = nn.Linear(8, 4)
    found = estimate(layer, torch.ones(2, 8), loss=lambda out: out.sum() + layer.weight.norm())
    assert found.loss == "the given loss"
    assert layer.weight.grad is None
