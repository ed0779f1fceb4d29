"""Operations by module: as many as torch's own counter counts."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from tests.inspect.small_models import MODELS, model_and_inputs
from torchfake import fake_like, fake_mode
from torchfake.inspect import Flops, summary


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_of_torchs_counter(name: str) -> None:
    """On the fake CUDA device too, whose attention runs other kernels."""
    model, inputs = model_and_inputs(name)
    for device in ("cpu", "cuda"):
        found = summary(model, inputs, device=device)
        fake = fake_like(model, device=device)
        with fake_mode(fake_cuda=True), FlopCounterMode(display=False) as counter:
            output = fake(**{k: fake_like(v, device=device) for k, v in inputs.items()})
            forward = counter.get_total_flops()
            loss = output.sum() if torch.is_tensor(output) else output.loss
            loss.backward()
        backward = counter.get_total_flops() - forward
        attention = {} if device == "cuda" else uncounted(model, inputs)
        assert found.flops[""].forward == forward + attention.get("forward", 0)
        assert found.flops[""].backward == backward + attention.get("backward", 0)


def uncounted(model: nn.Module, inputs: Any) -> dict[str, int]:
    """What attention on the CPU does, which torch before 2.15 does not count."""
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if op in flop_registry:
        return {}
    seen = {"forward": 0, "backward": 0}

    class Attention(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            phase = "backward" if "backward" in str(func) else "forward"
            if "flash_attention_for_cpu" in str(func):
                q, k = args[1:3] if phase == "backward" else args[:2]
                batch, heads, length, width = q.shape
                products = 5 if phase == "backward" else 2
                seen[phase] += products * 2 * batch * heads * length * k.shape[2] * width
            return func(*args, **(kwargs or {}))

    with Attention():
        output = model(**inputs)
        (output.sum() if torch.is_tensor(output) else output.loss).backward()
    model.zero_grad()
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_operations_of_modules_add_up(name: str) -> None:
    model, inputs = model_and_inputs(name)
    found = summary(model, inputs)
    for path, module in model.named_modules():
        inside = [f"{path}.{n}".strip(".") for n, _ in module.named_children()]
        parts = found.flops_of(inside)
        own = found.flops.get(path)
        if own is not None:
            assert own.forward >= parts.forward
            assert own.backward >= parts.backward


def test_a_linear_layers_operations() -> None:
    found = summary(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7)), torch.ones(2, 3))
    assert found.flops["0"] == (2 * 2 * 3 * 5, 2 * 2 * 3 * 5)  # its input needs no gradient
    assert found.flops["1"] == (2 * 2 * 5 * 7, 2 * 2 * 2 * 5 * 7)


def test_experts_count_for_the_tokens_that_they_compute() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, vocab_size=50,
    )  # fmt: skip
    with fake_mode():
        model = MixtralForCausalLM(config)
        tokens = torch.zeros(3, 8, dtype=torch.long)
    found = summary(model, tokens).flops["model.layers.1.mlp.experts"]
    each = 2 * 24 * 2 * (3 * 32 * 64)  # tokens, experts of each, its three matrices
    assert found.forward == each
    assert found.backward == 2 * each


def test_a_module_without_gradients_has_no_backward() -> None:
    layer = nn.Linear(3, 4).requires_grad_(False)
    assert summary(layer, torch.ones(2, 3)).flops[""] == (48, 0)


def test_inference_mode_inside_a_module() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                encoded = self.encoder(x)
            return self.head(encoded.clone())

    found = summary(Frozen(), torch.ones(2, 8)).flops
    assert found[""] == (512, 256)
    assert found["encoder"] == (256, 0)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_model_flops_do_not_grow_with_checkpointing(use_reentrant: bool) -> None:
    model, inputs = model_and_inputs("llama")
    model.train()
    model.config.use_cache = False
    plain = summary(model, inputs).flops[""]
    old_name = model.gradient_checkpointing_enable  # the only one in transformers 5.0
    getattr(model, "activation_checkpointing_enable", old_name)({"use_reentrant": use_reentrant})
    found = summary(model, inputs).flops[""]
    layers = summary(model, inputs).flops["model.layers"].forward
    assert found.model == plain.model
    again = found.recomputed - plain.recomputed
    assert found.hardware == plain.hardware + again
    assert again == layers if use_reentrant else 0 < again <= layers  # which stops early


def test_attention_recomputes_its_scores() -> None:
    """Fused attention has five products going backward; of four the model has need."""
    model, inputs = model_and_inputs("llama")
    model.eval()
    found = summary(model, inputs).flops[""]
    assert found.recomputed == 3 * 2 * 2 * 4 * 16 * 16 * 8  # layers, batch, heads, lengths, width
    assert found.model == 3 * found.forward
    assert (found.hardware, found.model) == (sum(found), sum(found) - found.recomputed)
    text, data = str(summary(model, inputs)), summary(model, inputs).to_dict()
    assert "hardware FLOPs" in text
    assert "without what is recomputed" in text
    assert data["flops"][""]["model"] == found.model


def test_flops_are_copied_whole() -> None:
    found = pickle.loads(pickle.dumps(Flops(3, 8, 2)))
    assert (found, found.recomputed, found.hardware, found.model) == ((3, 8), 2, 11, 9)
