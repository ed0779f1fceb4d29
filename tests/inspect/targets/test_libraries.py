"""Targets of timm, torchvision and diffusers: the arguments that their functions are called with.

Stubs stand for the libraries, whose imports take seconds; tests/ecosystem has the real ones.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tests.inspect.targets.conftest import LLAMA, made
from torchfake import errors, is_fake
from torchfake.inspect import resolve


class ModelMixin(nn.Module):
    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**{key: value for key, value in config.items() if not key.startswith("_")})


class UNet(ModelMixin):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1)


class Pipeline: ...


def resnet(*, weights: Any = 1, width: int = 3) -> nn.Module:
    assert weights is None
    return nn.Linear(width, 2)


def detector(*, weights: Any = 1, weights_backbone: Any = 1, width: int = 3) -> nn.Module:
    assert weights is weights_backbone is None
    return nn.Linear(width, 2)


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    builders: dict[str, Any] = {"resnet": resnet, "detector": detector}

    def create(name: str, *, pretrained: bool, width: int = 3) -> nn.Module:
        assert not pretrained
        return nn.Linear(width, 2)

    models = SimpleNamespace(
        list_models=lambda: [*builders],
        get_model_builder=builders.__getitem__,
        get_model=lambda name, **given: builders[name](**given),
    )
    stubs: dict[str, Any] = {
        "timm": SimpleNamespace(list_models=lambda: ["vit_tiny"], create_model=create),
        "torchvision": SimpleNamespace(models=models),
        "diffusers": SimpleNamespace(
            __version__="0", ModelMixin=ModelMixin, DiffusionPipeline=Pipeline, UNet=UNet,
            DDPMPipeline=type("DDPMPipeline", (Pipeline,), {}),
        ),
    }  # fmt: skip
    for name, stub in stubs.items():
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.setattr(importlib.util, "find_spec", _find_spec)


_found = importlib.util.find_spec


def _find_spec(name: str, package: str | None = None) -> Any:
    """transformers looks for them when it is imported, and is to find none."""
    return None if name in ("timm", "torchvision") else _found(name, package)


@pytest.mark.parametrize("text", ["timm:vit_tiny", "torchvision:resnet", "torchvision:detector"])
def test_by_name_without_weights(text: str) -> None:
    assert is_fake(made(text))
    assert made(text, "width=7").in_features == 7


def test_a_class_of_diffusers() -> None:
    assert made("diffusers:UNet").conv.in_channels == 3
    assert made("diffusers:UNet", "width=5").conv.in_channels == 5


def test_directories_of_diffusers(tmp_path: Any) -> None:
    index = {
        "_class_name": "DDPMPipeline", "unet": ["diffusers", "UNet"],
        "text_encoder": ["transformers", "LlamaModel"], "scheduler": ["diffusers", "Scheduler"],
    }  # fmt: skip
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    for name, config in {
        "unet": {"_class_name": "UNet", "width": 4},
        "text_encoder": LLAMA,
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    pipeline = made(str(tmp_path), "unet.width=5", "text_encoder.num_hidden_layers=1")
    assert pipeline["unet"].conv.in_channels == 5
    assert [*pipeline] == ["unet", "text_encoder"]
    assert made(str(tmp_path / "unet")).conv.in_channels == 4
    with pytest.raises(errors.TargetError, match=r"no model for 'vae\.width'.*MODEL\.KEY=VALUE"):
        resolve(str(tmp_path), overrides=["vae.width=1"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timm:vit_tyni", "timm has no model 'vit_tyni'; did you mean vit_tiny?"),
        ("torchvision:resnt", "torchvision has no model 'resnt'; did you mean resnet?"),
        ("diffusers:UNett", "diffusers 0 has no model 'UNett'; did you mean UNet?"),
        ("diffusers:DDPMPipeline", "DDPMPipeline is a pipeline, and its models depend on its ch"),
    ],
)
def test_what_is_not_there(text: str, said: str) -> None:
    with pytest.raises(errors.TargetError) as caught:
        resolve(text)
    assert said in str(caught.value)


def test_keys_that_a_model_does_not_have() -> None:
    with pytest.raises(errors.TargetError, match="UNet has no key 'widht'; did you mean width"):
        resolve("diffusers:UNet", overrides=["widht=3"])


def test_a_library_that_is_not_installed_or_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(errors.TorchFakeError, match="timm"):
        resolve("timm:vit_tiny")


WITHOUT_SAFETENSORS = """
import sys

import torch

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "safetensors":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())

from torchfake import deferred_init, estimate, materialize_module, save_materialized
from torchfake.errors import MissingExtraError
from torchfake.inspect import diff
from torchfake.inspect.targets.resolve import resolve

folder = sys.argv[1]
save_materialized(deferred_init(torch.nn.Linear, 3, 4), folder)
for make in (
    lambda: resolve("transformers:LlamaForCausalLM"),
    lambda: resolve("diffusers:UNet2DModel"),
    lambda: diff(folder, torch.nn.Linear(3, 4)),
    lambda: materialize_module(deferred_init(torch.nn.Linear, 3, 4), checkpoint=folder),
):
    try:
        make()
    except MissingExtraError as error:
        print(error)
print(estimate(torch.nn.Linear(3, 4), torch.ones(2, 3)).peak_bytes > 0)
"""


def test_missing_safetensors_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_SAFETENSORS, str(tmp_path / "weights")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert made.stdout.splitlines() == [
        "LlamaForCausalLM needs safetensors, which is not installed: pip install safetensors",
        "diffusers needs safetensors, which is not installed: pip install safetensors",
        'model.safetensors needs safetensors: pip install "torchfake[files]"',
        'model.safetensors needs safetensors: pip install "torchfake[files]"',
        "True",
    ]
