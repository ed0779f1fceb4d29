"""Fine-tuning in torchtune and litgpt, through these libraries themselves, on fakes.

Steps are those of their recipes: torchtune's full_finetune_single_device, litgpt's finetune_lora.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torchfake import fake_mode

Step = Callable[[], None]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """As torchtune's recipes make models: caches of positions stay in float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class EarlierRMSNorm(nn.Module):
    """torchtune's until 25 November 2024, with which its README was measured: what is normalized is
    kept in the dtype of the input, where ``F.rms_norm`` with a bfloat16 weight has it in float32.
    """

    def __init__(self, scale: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.scale, self.eps = scale, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = x.float()
        mean_square = whole.pow(2).mean(-1, keepdim=True)
        return (whole * torch.rsqrt(mean_square + self.eps)).type_as(x) * self.scale


def llama_3b_full(batch: int, length: int) -> Step:
    """torchtune's Llama 3.2 3B in bfloat16, packed samples, fused AdamW, plain cross entropy.

    Packed samples go through flex attention, which keeps no mask; causal attention is as large.
    """
    from torchtune.models.llama3_2 import llama3_2_3b
    from torchtune.modules import RMSNorm

    with fake_mode():
        with default_dtype(torch.bfloat16):
            model = llama3_2_3b()
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, RMSNorm):
                    setattr(module, name, EarlierRMSNorm(child.scale, child.eps))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.zeros(batch, length, dtype=torch.long)
        labels, positions = torch.zeros_like(tokens), torch.zeros_like(tokens)
        ignored = torch.full((batch, 1), -100)
    loss_of = nn.CrossEntropyLoss(ignore_index=-100)

    def step() -> None:
        logits = model(tokens, input_pos=positions)
        targets = torch.hstack((labels[..., 1:], ignored)).reshape(-1)
        logits = logits.reshape(-1, logits.size(-1))
        loss = loss_of(logits, targets)
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def llama_3b_lora() -> Any:
    """torchtune's Llama 3.2 3B with the adapters of its recipe."""
    from torchtune.models.llama3_2 import lora_llama3_2_3b

    modules = ["q_proj", "v_proj", "output_proj"]
    with fake_mode(), default_dtype(torch.bfloat16):
        return lora_llama3_2_3b(modules, apply_lora_to_mlp=True, lora_rank=64, lora_alpha=128)


class EarlierProduct(torch.autograd.Function):
    """bitsandbytes' product with a weight of 4 bits until 16 July 2024: it kept the input, though
    only the gradient of a weight would need it.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        ctx.kept = x, weight
        return F.linear(x, dequantized(weight, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,), (_, weight) = gradients, ctx.kept
        return gradient @ dequantized(weight, gradient.dtype), None, None


def dequantized(weight: Any, dtype: torch.dtype) -> torch.Tensor:
    from bitsandbytes.functional import dequantize_4bit

    whole: torch.Tensor = dequantize_4bit(weight.data, weight.quant_state)
    return whole.to(dtype)


def earlier_forward(layer: Any, x: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = EarlierProduct.apply(x, layer.weight, layer.bias)
    return product


def litgpt_lora(name: str, length: int, batch: int = 1, quantize: str | None = None) -> Step:
    """litgpt's LoRA of 8 on queries and values in bfloat16, the loss in chunks.

    Lightning Fabric's precision is part of it: it gives the chunks of logits in float32.
    """
    from litgpt.lora import GPT, Config, mark_only_lora_as_trainable
    from litgpt.utils import chunked_cross_entropy

    options = {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05}
    targets_of = {"lora_query": True, "lora_key": False, "lora_value": True}
    others = dict.fromkeys(("lora_projection", "lora_mlp", "lora_head"), False)
    config = Config.from_name(name, **options, **targets_of, **others)
    precision = _precision(quantize)
    with fake_mode(fake_cuda=True), torch.device("cuda"):
        with precision.module_init_context():
            model = precision.convert_module(GPT(config))
        for layer in model.modules() if quantize else ():
            if type(layer).__name__.startswith("_NF4"):
                layer.forward = MethodType(earlier_forward, layer)
        mark_only_lora_as_trainable(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained)
        tokens = torch.zeros(batch, length, dtype=torch.long)
        targets = torch.zeros_like(tokens)

    def step() -> None:
        with precision.forward_context():
            logits = model(tokens, lm_head_chunk_size=128)
        logits = precision.convert_output(logits)
        logits[-1] = logits[-1][..., :-1, :]
        loss = chunked_cross_entropy(logits, targets[..., 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _precision(quantize: str | None) -> Any:
    if quantize is None:
        from lightning.fabric.plugins.precision.half import HalfPrecision

        return HalfPrecision("bf16-true")
    from lightning.fabric.plugins.precision.bitsandbytes import BitsandbytesPrecision

    return BitsandbytesPrecision(quantize, dtype=torch.bfloat16)
