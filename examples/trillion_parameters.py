"""A language model of more than a trillion parameters, built on any machine.

Run it: ``python examples/trillion_parameters.py``. It needs transformers.
"""

import resource
import sys
import time
from collections import Counter

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from torchfake import fake_mode, is_fake

CONFIG = LlamaConfig(
    hidden_size=25_600,
    intermediate_size=102_400,
    num_hidden_layers=96,
    num_attention_heads=200,
    num_key_value_heads=200,
    vocab_size=128_256,
)


def peak_bytes() -> int:
    """The most memory this process has had so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    with fake_mode():  # a first model, so that lazy imports are not timed below
        AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=1))

    before, start = peak_bytes(), time.perf_counter()
    with fake_mode():
        model = AutoModelForCausalLM.from_config(CONFIG, dtype=torch.bfloat16)
    seconds, growth = time.perf_counter() - start, peak_bytes() - before

    num_parameters = sum(p.numel() for p in model.parameters())
    bytes_of: Counter[torch.dtype] = Counter()
    for tensor in (*model.parameters(), *model.buffers()):
        bytes_of[tensor.dtype] += tensor.numel() * tensor.element_size()

    print(f"{num_parameters:,} parameters in {seconds:.1f} s")
    for dtype, size in bytes_of.most_common():
        print(f"{dtype}: {size / 1e9:,.3f} GB")
    print(f"memory taken to build it: {growth / 1e6:.0f} MB")

    assert is_fake(model)
    assert num_parameters > 1e12
    assert bytes_of[torch.bfloat16] == 2 * num_parameters
    assert growth < 300e6

    # It also runs: the shapes of one forward pass.
    with fake_mode():
        logits = model(torch.randint(CONFIG.vocab_size, (1, 4096)), use_cache=False).logits
    assert logits.shape == (1, 4096, CONFIG.vocab_size)


if __name__ == "__main__":
    main()
