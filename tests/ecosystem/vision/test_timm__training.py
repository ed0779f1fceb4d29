"""timm's tools of training: averages, optimizers, checkpoints, schedules, gradient clipping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm import loss, optim, scheduler, utils
from timm.models import load_checkpoint, resume_checkpoint
from torch import nn

from tests.programs import assert_program

pytestmark = pytest.mark.filterwarnings("ignore")
V3_OPTIONS: list[dict[str, Any]] = [
    {}, {"use_warmup": True}, {"foreach": False}, {"exclude_buffers": True}, {"device": "cpu"},
    {"update_after_step": 1},
]  # fmt: skip
OPTIMIZERS = (
    "sgd", "adamw", "lamb", "lars", "larc", "lion", "clion", "cadamw", "adafactor", "adafactorbv",
    "adopt", "nadamw", "madgrad", "adan", "adamp", "sgdp", "novograd", "mars", "muon",
    "lookahead_adamw", "radam", "rmsproptf", "adabelief", "laprop",
)  # fmt: skip


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))


def train(model: nn.Module, optimizer: Any, update: Any = None) -> None:
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(7, 6)).pow(2).sum().backward()
        optimizer.step()
        if update:
            update(model, step)


@pytest.mark.parametrize("options", V3_OPTIONS, ids=str)
def test_the_third_average(options: dict[str, Any]) -> None:
    def program() -> Any:
        model = network()
        mean = utils.ModelEmaV3(model, **options)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), mean.update)
        return model, mean.module, mean(torch.randn(3, 6))

    assert_program(program)


@pytest.mark.parametrize("kind", ["ModelEma", "ModelEmaV2"])
def test_older_averages(kind: str) -> None:
    def program() -> Any:
        model = network()
        mean = getattr(utils, kind)(model, decay=0.9)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, lambda model, _: mean.update(model))
        return model, mean.ema if kind == "ModelEma" else mean.module

    assert_program(program)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    def program() -> Any:
        model = network()
        optimizer = optim.create_optimizer_v2(model, opt=name, lr=0.01, weight_decay=0.05)
        train(model, optimizer)
        return model, optimizer

    assert_program(program)


@pytest.mark.parametrize("mode", ["norm", "value", "agc"])
def test_a_step_of_a_vision_transformer(mode: str) -> None:
    def program() -> Any:
        model = timm.create_model("test_vit", num_classes=10, drop_path_rate=0.1)
        optimizer = optim.create_optimizer_v2(model, "adamw", lr=0.01, layer_decay=0.7)
        schedule, _ = scheduler.create_scheduler_v2(optimizer, "cosine", num_epochs=5)
        labels = torch.rand(2, 10).softmax(1)
        value = loss.SoftTargetCrossEntropy()(model(torch.randn(2, 3, 160, 160)), labels)
        value.backward()
        utils.dispatch_clip_grad(model.parameters(), 0.1, mode=mode)
        optimizer.step()
        schedule.step(1)
        return model, value

    assert_program(program)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of both formats, and a checkpoint of training."""
    folder = tmp_path_factory.mktemp("timm")
    torch.manual_seed(7)
    model = timm.create_model("test_resnet", num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    optimizer.step()
    weights = model.state_dict()
    torch.save(weights, folder / "weights.pth")
    save_file(weights, folder / "weights.safetensors")
    whole = {"epoch": 3, "version": 2, "state_dict": weights, "optimizer": optimizer.state_dict()}
    torch.save({**whole, "state_dict_ema": weights}, folder / "last.pth.tar")
    return folder


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors", "last.pth.tar"])
def test_load_checkpoint(folder: Path, name: str) -> None:
    def program() -> Any:
        model = timm.create_model("test_resnet", num_classes=10)
        load_checkpoint(model, str(folder / name))
        path = str(folder / name)
        return model, timm.create_model("test_resnet", num_classes=10, checkpoint_path=path)

    assert_program(program)


def test_resume_checkpoint(folder: Path) -> None:
    def program() -> Any:
        model = timm.create_model("test_resnet", num_classes=10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        path = str(folder / "last.pth.tar")
        return model, optimizer, resume_checkpoint(model, path, optimizer, log_info=False)

    assert_program(program)
