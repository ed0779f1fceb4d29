"""Small causal models that transformers quantizes while it loads them, compared with eager's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.ecosystem.quantization.memory import bytes_of
from torchfake import deferred_init, estimate, fake_mode, is_fake, materialize_module, summary
from torchfake._tensor.copies import held_tensors
from torchfake.inspect import weights
from torchfake.inspect.contents.schemes import scheme_of_config
from torchfake.inspect.contents.weights import weights_by

TOKENS = torch.arange(8)[None]


def save_model(folder: Path, **config: Any) -> Path:
    """A llama of one layer, saved."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 512}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4}
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(num_hidden_layers=1, **sizes, **heads, **config)
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def load(folder: Path, config: Any, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, dtype=torch.bfloat16, **options
    )


def all_held(module: nn.Module) -> list[torch.Tensor]:
    tensors = [*module.parameters(), *module.buffers()]
    return [held for tensor in tensors for held in held_tensors(tensor)]


def assert_loads_as_eager(folder: Path, make_config: Any, *, runs: bool = True) -> None:
    """Fakes have the tensors and bytes of eager's model, deferred ones its bits."""
    eager = load(folder, make_config())
    expected = [(t.shape, t.dtype, t.stride()) for t in all_held(eager)]
    num_bytes = bytes_of(all_held(eager))
    deferred = materialize_module(deferred_init(load, folder, make_config()))
    assert list(map(_bits, all_held(deferred))) == list(map(_bits, all_held(eager)))
    if runs:
        step = estimate(eager, TOKENS, mode="inference")
        held = step.peak.by_category["parameters"] + step.peak.by_category.get("buffers", 0)
        assert held == num_bytes
        with torch.no_grad():
            assert torch.equal(deferred(TOKENS).logits, eager(TOKENS).logits)
    with fake_mode():
        fake = load(folder, make_config())
        assert all(map(is_fake, all_held(fake)))
        assert [(t.shape, t.dtype, t.stride()) for t in all_held(fake)] == expected
        assert bytes_of(all_held(fake)) == num_bytes
        size = summary(fake).tree.size
        assert size.parameter_bytes + size.buffer_bytes == num_bytes
        if runs:
            assert fake(TOKENS).logits.shape == (1, 8, 512)


def assert_weights_are_known(folder: Path, config: Any, scheme: str | None = None) -> None:
    """What ``weights`` says of the plain model is what the library holds: by the scheme's name, and
    by what the config of the quantized model says.
    """
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    eager = load(folder, config)
    num_bytes = bytes_of(all_held(eager))
    if scheme is not None:
        assert weights(plain, scheme).num_bytes == num_bytes
    found = scheme_of_config(eager.config.quantization_config.to_dict())
    if found is not None:
        assert weights_by(plain, *found, {}).num_bytes == num_bytes


def _bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().contiguous().reshape(-1)
    return tensor.shape, tensor.dtype, bytes(flat.view(torch.uint8).numpy())


def error_of(folder: Path, config: Any) -> tuple[type, str]:
    """What loading is refused with."""
    try:
        load(folder, config)
    except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        return type(error), str(error)
    raise AssertionError("it was loaded")


def wide_llama() -> nn.Module:
    """On real tensors, wide enough for groups of 64 values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=50,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()
