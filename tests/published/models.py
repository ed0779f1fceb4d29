"""Models of papers and pages, as they describe them, on fakes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchfake import example_inputs, fake_mode


class TransformerLayer(nn.Module):
    """The layer of Korthikanti et al. 2022, with attention written out and three dropouts."""

    def __init__(self, hidden: int, heads: int, *, recomputes_attention: bool) -> None:
        super().__init__()
        self.heads, self.recomputes_attention = heads, recomputes_attention
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        parts = self.qkv(self.norm_1(x)).chunk(3, -1)
        heads = [p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts]
        if self.recomputes_attention:
            y = checkpoint(attention, *heads, use_reentrant=False)
        else:
            y = attention(*heads)
        y = self.projection(y.transpose(1, 2).reshape(batch, length, hidden))
        x = x + F.dropout(y, 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), 0.1)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return torch.matmul(F.dropout(scores.softmax(-1), 0.1), v)


def octocoder() -> tuple[nn.Module, Any]:
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    config = GPTBigCodeConfig(
        vocab_size=49152, n_positions=8192, n_embd=6144, n_layer=40, n_head=48, n_inner=24576,
        multi_query=True,
    )  # fmt: skip
    with fake_mode():
        model = GPTBigCodeForCausalLM(config).bfloat16()
    return model, example_inputs(model, batch=1)


def llama_8b() -> tuple[nn.Module, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
    )  # fmt: skip
    with fake_mode():
        model = LlamaForCausalLM(config).bfloat16()
    return model, example_inputs(model, batch=1)


def gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    with fake_mode():
        model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager"))
    return model, example_inputs(model, batch=1, seq=1024)


class EarlierSoftmax(torch.autograd.Function):
    """torch's until 1.10: its backward pass took the input too, for its dtype alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        found = x.softmax(-1)
        ctx.save_for_backward(x, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        x, found = ctx.saved_tensors
        return torch._softmax_backward_data(gradients[0], found, -1, x.dtype)


def attention_of_2022(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """BERT's, with a mask of zeros where none is given."""
    zeros = torch.zeros(q.shape[0], 1, 1, k.shape[2], device=q.device)
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) + zeros
    kept = F.dropout(EarlierSoftmax.apply(scores), options["dropout"], module.training)
    return torch.matmul(kept, v).transpose(1, 2).contiguous(), None


def bert_step(
    batch: int, *, adafactor: bool, half: bool, accumulate: int, checkpoints: bool
) -> Any:
    """A step of BERT-large as transformers' Trainer did it in 2022: gradients are set to zero, and
    stay; with torch's softmax of that time.
    """
    from transformers import AttentionInterface, BertConfig, BertForSequenceClassification

    AttentionInterface.register("of_2022", attention_of_2022)
    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        attn_implementation="of_2022",
    )  # fmt: skip
    with fake_mode():
        model = BertForSequenceClassification(config)
        if checkpoints:
            model.activation_checkpointing_enable()
        if adafactor:
            optimizer: Any = torch.optim.Adafactor(model.parameters())
        else:
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        ids, labels = (
            torch.zeros(batch, 512, dtype=torch.long),
            torch.zeros(batch, dtype=torch.long),
        )

    def step() -> None:
        for _ in range(accumulate):
            with torch.autocast("cuda", torch.float16, enabled=half):
                loss = model(input_ids=ids, labels=labels).loss / accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step
