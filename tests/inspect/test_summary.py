"""What a module is: sizes and outputs as eager has them."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.inspect.small_models import MODELS, model_and_inputs
from torchfake import deferred_init, fake_mode
from torchfake.inspect import summary
from torchfake.inspect.records.tensor_specs import to_specs


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_a_real_run(name: str) -> None:
    model, inputs = model_and_inputs(name)
    found = summary(model, inputs)
    real: dict[str, Any] = {}

    def note(path: str, module: nn.Module, args: Any, output: Any) -> None:
        real.setdefault(path, to_specs(output))

    for path, module in model.named_modules():
        module.register_forward_hook(partial(note, path))
    model(**inputs)
    assert found.outputs == real


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_those_of_the_module(name: str) -> None:
    model, _ = model_and_inputs(name)
    next(iter(model.parameters())).requires_grad_(False)
    found = summary(model)
    size = found.tree.size
    parameters = list(model.parameters())
    assert size.num_parameters == sum(p.numel() for p in parameters)
    assert size.num_frozen == parameters[0].numel()
    assert size.parameter_bytes == sum(p.nbytes for p in parameters)
    assert size.buffer_bytes == sum(b.nbytes for b in model.buffers())
    assert found.inputs is None
    assert not found.flops


def test_fake_deferred_and_real_have_the_same_summary() -> None:
    def build() -> nn.Module:
        return nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False
        )

    with fake_mode():
        fake = build()
    said = {str(summary(m, torch.ones(5, 2, 8))) for m in (fake, build(), deferred_init(build))}
    assert len(said) == 1


def test_json_and_pandas() -> None:
    model, inputs = model_and_inputs("vit")
    found = summary(model, inputs)
    said = json.loads(json.dumps(found.to_dict()))
    assert said["totals"]["num_parameters"] == found.tree.size.num_parameters
    assert said["flops"][""]["forward"] == found.flops[""].forward
    pytest.importorskip("pandas")
    frame = found.to_pandas().set_index("name")
    assert frame.loc["", "num_parameters"] == found.tree.size.num_parameters
    assert frame.loc["", "flops_backward"] == found.flops[""].backward
    assert (frame.repeat > 1).any()
