"""The advice to give an input shows one of the module's kind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchfake import check, estimate
from torchfake.errors import CheckError, InputsError
from torchfake.inspect.inputs.hints import as_options, example_text, inputs_advice

KINDS = {
    "--input int64[2,64]": nn.Embedding(10, 4),
    "--input 2,8,16000": nn.Conv1d(8, 4, 3),
    "--input 2,1,224,224": nn.Conv2d(1, 4, 3),
    "--input 2,3,16,112,112": nn.Conv3d(3, 4, 3),
    "--input 64,2,5": nn.LSTM(5, 4),
    "--input 2,64,5": nn.GRU(5, 4, batch_first=True),
    " ".join(f"--input {name}=float32[2,64,8]" for name in ("query", "key", "value")): (
        nn.MultiheadAttention(8, 2)
    ),
    "--input 2,7": nn.Linear(7, 4),
    "--input 2,64": nn.ReLU(),
}


@pytest.mark.parametrize("text", KINDS)
def test_by_the_first_layer(text: str) -> None:
    module = KINDS[text]
    assert example_text(module) == text
    if len(text.split()) == 2 and [*module.parameters()]:
        assert example_text(nn.Sequential(module, nn.Linear(3, 3))) == text
    assert text in inputs_advice(module)


def test_in_python() -> None:
    with pytest.raises(InputsError, match=r"or input_size=\(2, 1, 224, 224\)"):
        estimate(nn.Conv2d(1, 4, 3))
    with pytest.raises(CheckError, match=r"torch\.zeros\(2, 64, dtype=torch\.int64\)"):
        check(nn.Embedding(10, 4))


def test_inputs_as_options() -> None:
    inputs = {"x": torch.ones(2, 3), "ids": torch.ones(4, dtype=torch.int64), "flag": True}
    assert as_options(inputs) == "--input x=float32[2,3] --input ids=int64[4]"
