"""Training on fake CUDA gives the metadata of training on the CPU, but for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests._patches.conftest import CUDA
from tests.conftest import all_fake, describe
from torchfake import fake_mode


def train(optimizer_class: Any, device: str, **options: Any) -> list[Any]:
    """Three accumulated steps of a small network: everything that has metadata."""
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(144, 5)]
    module = nn.Sequential(*layers).to(device)
    optimizer = optimizer_class(module.parameters(), lr=0.1, **options)
    for step in range(3):
        x, y = torch.randn(2, 3, 8, 8, device=device), torch.tensor([1, 2], device=device)
        loss = F.cross_entropy(module(x), y) / 2
        loss.backward()
        if step:
            norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    states = [sorted(s.items()) for s in optimizer.state_dict()["state"].values()]
    return [loss, norm, list(module.parameters()), states]


@pytest.mark.parametrize(
    "options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}], ids=str
)
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_training(optimizer: Any, options: dict[str, bool]) -> None:
    """The same metadata as on the CPU, but for the device; the step counts are where CUDA's are."""
    expected = train(optimizer, "cpu", **options)
    with fake_mode(fake_cuda=True):
        got = train(optimizer, "cuda", **options)
    assert all_fake(got)
    assert [d._replace(device=None) for d in describe(got) if not isinstance(d, str)] == [
        d._replace(device=None) for d in describe(expected) if not isinstance(d, str)
    ]
    tensors = [t for t in torch.utils._pytree.tree_leaves(got) if isinstance(t, torch.Tensor)]
    on_cpu = [t for t in tensors if t.device.type == "cpu"]
    assert all(t.dim() == 0 for t in on_cpu)
    assert not (options.get("fused") and on_cpu)


def test_gpt2_trains_twice() -> None:
    """A whole training step of GPT-2, twice, in each of two modes."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config()

    def step(model: Any, optimizer: Any) -> Any:
        tokens = torch.randint(0, config.vocab_size, (2, 16), device="cuda")
        for _ in range(2):
            loss = model(tokens, labels=tokens).loss
            (loss / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    for _ in range(2):
        with fake_mode(fake_cuda=True):
            model = transformers.GPT2LMHeadModel(config).to("cuda").train()
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            for _ in range(2):
                loss, norm = step(model, optimizer)
        assert (loss.device, tuple(loss.shape), norm.device) == (CUDA, (), CUDA)
        assert model.lm_head.weight is model.transformer.wte.weight
        assert {p.device for p in model.parameters()} == {CUDA}
        states = [v for s in optimizer.state.values() for v in s.values()]
        assert {v.device for v in states} == {CUDA}
        assert len(states) == 3 * len(list(model.parameters()))
    assert not torch.cuda.is_initialized()
