"""What fakes cost: memory in proportion to their number, never to their size."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest
import torch

from torchfake import fake_mode

MAX_GROWTH_BYTES = 300 * 1024**2
MAX_BYTES_PER_FAKE = 4096

TRILLION = """
import resource, sys, torch
from torchfake import fake_mode, is_fake
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

config = Qwen3MoeConfig(
    vocab_size=150_000, hidden_size=8192, intermediate_size=24_576, num_hidden_layers=64,
    num_attention_heads=64, num_key_value_heads=8, head_dim=128, num_experts=320,
    moe_intermediate_size=2048, num_experts_per_tok=8,
)

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

with fake_mode():
    Qwen3MoeForCausalLM(Qwen3MoeConfig(num_hidden_layers=1))  # imports what is imported lazily
    before = peak()
    model = Qwen3MoeForCausalLM(config)
assert is_fake(model)
sys.stdout.write(f"{sum(p.numel() for p in model.parameters())} {peak() - before}")
"""


def test_a_trillion_parameters() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", TRILLION], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    num_parameters, growth_bytes = map(int, done.stdout.split())
    assert num_parameters > 1e12
    assert growth_bytes < MAX_GROWTH_BYTES


@pytest.mark.parametrize("size", [(4,), (10**6, 10**6)])
def test_a_fake_costs_little(size: tuple[int, ...]) -> None:
    count = 2_000
    with fake_mode():
        torch.empty(size).view(-1).untyped_storage()  # caches are filled by the first
        tracemalloc.start()
        fakes = [torch.empty(size) for _ in range(count)]
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(fakes) == count
    assert used / count < MAX_BYTES_PER_FAKE
