"""QLoRA of an 8B model: what it takes, on which GPUs it fits, and over how many it may be spread.

Run it: ``python examples/qlora.py``. It needs transformers, peft and bitsandbytes, and no GPU. On
the command line: ``torchfake fit TARGET --train --lora 16 --weights nf4``.
"""

import torch
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM

from torchfake import estimate, example_inputs, fake_mode, fit

CONFIG = LlamaConfig(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
)


def main() -> None:
    with fake_mode():
        model = LlamaForCausalLM(CONFIG).to(torch.bfloat16)
    inputs = example_inputs(model, batch=1, seq=512, labels=True)

    # The linear layers become bitsandbytes' Linear4bit, then PEFT adds its adapters, as by hand.
    lora = LoraConfig(r=16, target_modules="all-linear")
    step = estimate(model, inputs, weights="nf4", peft=lora, optimizer="adamw", gpu="rtx4090-24gb")
    parameters = step.peak.by_category["parameters"]
    print(f"{parameters / 1e9:.2f} GB of parameters: codes, scales, adapters and what is kept")
    assert f"{parameters / 1e9:.2f}" == "5.87"

    for found in fit(step, "t4-16gb", "rtx4090-24gb"):
        print(f"{found.gpu}: {found.verdict}, the largest batch is {found.largest}")
        assert found.fits

    whole = estimate(model, inputs, optimizer="adamw", gpu="rtx4090-24gb")
    print(f"all weights in bfloat16 would take {whole.peak_bytes / 1e9:.1f} GB")
    assert whole.peak_bytes > 4 * step.peak_bytes


if __name__ == "__main__":
    main()
