"""What quantized weights are refused for; tests/ecosystem/quantization runs the libraries' layers."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import estimate
from torchfake.errors import InputsError, MissingExtraError, UnknownValueError
from torchfake.inspect.inspection import inspect_target
from torchfake.inspect.question import Question
from torchfake.inspect.steps.quantized import library_is_missing, no_outliers, outliers_of

LAYER = "torch.nn:Linear", ["in_features=4096", "out_features=4096"]


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bitsandbytes", "torchao", "peft"):
        monkeypatch.setitem(sys.modules, name, None)


def step(**options: Any) -> Any:
    return estimate(nn.Linear(64, 64), torch.ones(2, 64), **options)


@pytest.mark.usefixtures("without_libraries")
def test_what_cannot_be_run() -> None:
    with pytest.raises(InputsError, match="weights='int3' is not nf4, bnb-int8"):
        step(weights="int3")
    with pytest.raises(
        MissingExtraError, match="runs the layers of bitsandbytes: pip install bits"
    ):
        step(weights="nf4")
    with pytest.raises(MissingExtraError, match="pip install torchao"):
        step(weights="int8")
    for scheme in ("gptq", "awq"):
        with pytest.raises(InputsError, match="gives the size of the weights alone"):
            step(weights=scheme)
        assert library_is_missing(scheme)


def test_weights_are_not_trained_without_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", nn)  # which is not used
    assert not library_is_missing("nf4")
    with pytest.raises(InputsError, match=r"\(QLoRA\): peft=LoraConfig\(\.\.\.\), on the command"):
        step(weights="nf4", optimizer="adamw")


@pytest.mark.usefixtures("without_libraries")
def test_of_targets() -> None:
    """GPUs alone compare the size of the weights; a step needs the library."""
    target, overrides = LAYER
    sizes = Question(weights="nf4", gpus=("h100",))
    found = inspect_target(target, overrides=overrides, question=sizes)
    assert found.fits is None
    assert found.weights is not None
    with pytest.raises(MissingExtraError, match="pip install bitsandbytes"):
        inspect_target(target, overrides=overrides, question=Question(weights="nf4", batch=2))
    with pytest.raises(InputsError, match="--lora-target names layers of adapters: give their ra"):
        inspect_target(target, overrides=overrides, question=Question(lora_target=("q_proj",)))
    lora = Question(lora=16, inputs=("2,4096",))
    assert lora.trains
    with pytest.raises(MissingExtraError, match="--lora needs the library: pip install peft"):
        inspect_target(target, overrides=overrides, question=lora)


def test_columns_with_outliers_are_assumed_to_be_none() -> None:
    assert outliers_of("bnb-int8") is no_outliers
    assert outliers_of("nf4") is None
    assert outliers_of(None) is None
    with pytest.raises(UnknownValueError):
        estimate(_Reads(), torch.ones(1 << 20), mode="inference", answer=no_outliers)


class _Reads(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.nonzero()
