"""The memory of fakes is proportional to their number, and independent of their size."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import fake_mode
from torchfake._cache import cache

MAX_GROWTH_BYTES = 300 * 1024**2
MAX_BYTES_PER_FAKE = 1_000

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


FAKES = """
import sys, torch
from torchfake import fake_mode
from torchfake._cache import cache

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

count = 20_000
with fake_mode():
    x = torch.empty(3, 4)
    kept = [{make} for i in range(100)] + [None] * count
    before = resident()
    for i in range(count):
        kept[i] = {make}
sys.stdout.write(str((resident() - before) // count))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("make", ["torch.empty(4)", "torch.empty(10**6, 10**6)", "x + x"])
def test_a_fake_costs_little(make: str) -> None:
    """The memory of a fake is bounded: its wrapper, record and storage, in Python and in C++."""
    done = subprocess.run(
        [sys.executable, "-c", FAKES.format(make=make)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MAX_BYTES_PER_FAKE


def test_fakes_are_freed_at_once() -> None:
    """A fake is freed with its last reference, without garbage collection: it is in no cycle."""

    def leftovers() -> list[Any]:
        x = nn.Parameter(torch.empty(4, 4))
        y = (x @ x).view(16).relu().sum()
        y.backward()
        return [weakref.ref(t._fake_storage) for t in (x, y, x.grad)]

    with fake_mode():
        leftovers()  # torch imports what it needs, and keeps frames of the first call
        gc.disable()
        try:
            assert [ref() for ref in leftovers()] == [None] * 3
            cache.clear()
            assert [ref() for ref in leftovers()] == [None] * 3
        finally:
            gc.enable()
