"""Times of fine-tuning that PEFT has published, and what an estimate says of the same step.

The rows are those of huggingface/peft, method_comparison/MetaMathQA/results/*.json (Apache 2.0), of
2026: Llama 3.2 3B in bfloat16 with AdamW on an L40S, 5,000 steps of 4 samples. Published: the time
of training without evaluation, divided by the steps. Samples have 228 tokens on average, to which
all of a step are set here: the source pads each batch to its longest.

With the methods whose file has a name with an even CRC-32 the share of the peak that matrix
products reach on such cards, with tensor cores and without, was chosen; the others are held out.
BOFT runs a CUDA kernel of its own there, and is left out.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tests.published.run import by_use, error_bar, line_of
from torchfake import estimate, fake_mode

BATCH, TOKENS = 4, 228


class Row(NamedTuple):
    """A method of PEFT's table; without a configuration, all parameters are trained."""

    name: str  # of the source's file
    milliseconds: float
    config: str = ""  # the class in peft
    options: dict[str, Any] = {}  # noqa: RUF012  never changed

    @property
    def is_held_out(self) -> bool:
        """Whether the row was not used to choose an efficiency."""
        return zlib.crc32(self.name.encode()) % 2 == 1

    def estimated(self) -> float:
        """The milliseconds that an estimate gives."""
        model, tokens = _model(self)
        inputs = {"input_ids": tokens, "labels": tokens}
        found = estimate(model, inputs, optimizer="adamw", gpu="l40s-48gb")
        assert found.step_seconds is not None
        return found.step_seconds * 1e3


ROWS = (
    Row("lora--llama-3.2-3B-rank32", 117.0, "LoraConfig", {"r": 32}),
    Row("lora--llama-3.2-3B-rank64", 118.9, "LoraConfig", {"r": 64}),
    Row("lora--llama-3.2-3B-rank32-dora", 141.3, "LoraConfig", {"r": 32, "use_dora": True}),
    Row("ia3--llama-3.2-3B-default", 116.2, "IA3Config"),
    Row("full-finetuning--llama-3.2-3B-lr_0.00001", 362.6),
    Row("ln_tuning--llama-3.2-3B-default", 105.4, "LNTuningConfig"),
    Row("loha--llama-3.2-3B-rank32", 190.7, "LoHaConfig", {"r": 32}),
    Row("lokr--llama-3.2-3B-rank32-factor4-lr0.003", 175.7, "LoKrConfig",
        {"r": 32, "decompose_factor": 4}),
    Row("oft--llama-3.2-3B-rank32", 147.3, "OFTConfig", {"r": 32, "oft_block_size": 0}),
    Row("miss--llama-3.2-3B-default", 112.3, "MissConfig"),
    Row("prompt_tuning--llama-3.2-3B-default", 188.0, "PromptTuningConfig",
        {"num_virtual_tokens": 200}),
    Row("randlora--llama-3.2-3B-default", 202.8, "RandLoraConfig"),
    Row("fourierft--llama-3.2-3B-default", 210.0, "FourierFTConfig"),
)  # fmt: skip


def _model(row: Row) -> tuple[Any, torch.Tensor]:
    """Llama 3.2 3B with the adapter of a row, and a batch of tokens."""
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=3072, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8,
        head_dim=128, intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True,
        use_cache=False,
    )  # fmt: skip
    with fake_mode():
        model = LlamaForCausalLM(config).bfloat16()
        tokens = torch.zeros(BATCH, TOKENS, dtype=torch.long)
        if not row.config:
            return model, tokens
        adapter = getattr(peft, row.config)(task_type="CAUSAL_LM", **row.options)
        return peft.get_peft_model(model, adapter), tokens


def report() -> Iterator[str]:
    """The lines of the rows, and what follows from them."""
    found = [(row, row.estimated() / row.milliseconds) for row in ROWS]
    for row, ratio in found:
        yield line_of(row.name, row, ratio)
    yield ""
    for name, some in by_use(found):
        ratios = [ratio for _, ratio in some]
        half, most = error_bar(ratios)
        near = sum(abs(ratio - 1) <= 0.15 for ratio in ratios)
        yield (
            f"PEFT on L40S, {name}: {len(ratios)} rows, half within {half:.1%}, nine in ten within "
            f"{most:.1%}, {near} within 15 %"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in report():
        print(line, flush=True)  # noqa: T201
