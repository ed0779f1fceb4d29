"""Megatron-core: its GPT model and its seeds on fake CUDA, in one process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.conftest import all_fake
from tests.oracle import assert_same
from torchfake import deferred_mode, fake_mode, materialize_module

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch.jit, and of extensions for GPUs
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig

CUDA = torch.device("cuda:0")

pytestmark = pytest.mark.filterwarnings("ignore")  # of a build without extensions for GPUs


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def build(**options: Any) -> torch.nn.Module:
    sizes = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
    config = TransformerConfig(**sizes, attention_dropout=0.1, **options)
    spec = get_gpt_layer_local_spec()
    model: torch.nn.Module = GPTModel(config, spec, vocab_size=64, max_sequence_length=8)
    return model


def test_a_step_of_training_on_fake_cuda() -> None:
    """Built on the device, with the generators of its tensor-parallel regions."""
    with fake_mode(fake_cuda=True):
        model_parallel_cuda_manual_seed(123)
        model = build().cuda()  # its norms are made on the CPU
        assert all_fake(model)
        assert {p.device for p in model.parameters()} == {CUDA}
        tokens = torch.randint(0, 64, (2, 8), device="cuda")
        positions = torch.arange(8, device="cuda").expand(2, 8)
        mask = torch.ones(2, 1, 8, 8, dtype=torch.bool, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        loss = model(tokens, positions, mask, labels=tokens)
        loss.float().mean().backward()
        optimizer.step()
    assert (loss.shape, loss.device) == ((2, 8), CUDA)
    assert {p.grad.device for p in model.parameters()} == {CUDA}


def test_a_deferred_model_is_the_eager_one() -> None:
    torch.manual_seed(3)
    eager = build(use_cpu_initialization=True)
    torch.manual_seed(3)
    with deferred_mode():
        deferred = build(use_cpu_initialization=True)
    assert_same(eager, materialize_module(deferred))


def test_a_model_deferred_on_fake_cuda_becomes_real_elsewhere() -> None:
    with deferred_mode(fake_cuda=True):
        model_parallel_cuda_manual_seed(123)
        deferred = build().cuda()
    assert {p.device for p in deferred.parameters()} == {CUDA}
    model = materialize_module(deferred, device="cpu")
    assert all(p.isfinite().all() for p in model.parameters())
    assert model.embedding.word_embeddings.weight.std() > 0
