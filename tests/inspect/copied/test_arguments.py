"""Inputs that are objects and functions with tensors in them: copied, counted, moved."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torchfake import estimate, fake_mode, is_fake
from torchfake._tensor.copies import FakeCopies
from torchfake.errors import InputsError
from torchfake.inspect.copied.arguments import ArgumentCopies, held_by_arguments

DOCUMENTS = torch.zeros(2, 64, dtype=torch.int64)


class Attention(nn.Module):
    """Its mask comes with its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor, mask: Any) -> torch.Tensor:
        q, k, v = (t.view(2, 64, 2, 8).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return flex_attention(q, k, v, block_mask=mask).transpose(1, 2).reshape(x.shape)


def mask_of(documents: torch.Tensor) -> Any:
    def same_document(b: Any, h: Any, i: Any, j: Any) -> Any:
        return documents[b, i, 0] == documents[b, j, 0]

    return create_block_mask(same_document, 2, None, 64, 64, device=str(documents.device))


def mask_of_a_global() -> Any:
    def same_document(b: Any, h: Any, i: Any, j: Any) -> Any:
        return DOCUMENTS[b, i] == DOCUMENTS[b, j]

    return create_block_mask(same_document, 2, None, 64, 64, device="cpu")


@pytest.mark.parametrize("mask", [mask_of(DOCUMENTS[..., None]), mask_of_a_global()])
@pytest.mark.parametrize("optimizer", [None, "adamw"])
def test_a_mask_goes_where_the_module_runs(mask: Any, optimizer: Any) -> None:
    found = estimate(
        Attention(), torch.randn(2, 64, 16), mask, optimizer=optimizer, gpu="h100-80gb"
    )
    assert found.peak_bytes
    assert not is_fake(mask.kv_indices)
    assert not is_fake(DOCUMENTS)


def test_what_a_mask_refers_to_is_held() -> None:
    def peak_bytes(width: int) -> int:
        with fake_mode():
            model, x = Attention(), torch.randn(2, 64, 16)
            mask = mask_of(torch.zeros(2, 64, width, dtype=torch.int64))
        return estimate(model, x, mask).peak_bytes

    assert peak_bytes(1024) - peak_bytes(512) == 2 * 64 * 512 * 8


class Scaling:
    """An object of the user, with what cannot be copied, and with a module."""

    def __init__(self, scale: torch.Tensor, module: nn.Module, lock: Any = None) -> None:
        self.scale, self.module, self.lock = scale, module, lock


def test_objects_share_tensors_and_modules_with_the_rest() -> None:
    scale, module = torch.ones(2), nn.Linear(2, 2)
    with fake_mode():
        fakes = FakeCopies(None)
        copied = ArgumentCopies(fakes, memo={id(module): nn.Identity()}).of(
            {"x": scale, "given": [Scaling(scale, module), "text"]}
        )
    first, text = copied["given"]
    assert copied["x"] is first.scale
    assert is_fake(first.scale)
    assert isinstance(first.module, nn.Identity)
    assert text == "text"


def test_what_has_no_tensors_is_passed_on() -> None:
    lock = threading.Lock()
    function = test_what_has_no_tensors_is_passed_on
    assert ArgumentCopies(FakeCopies(None)).of((lock, function)) == (lock, function)
    assert held_by_arguments((lock, nn.Linear(2, 2), function)) == []


def test_what_cannot_be_copied() -> None:
    given = Scaling(torch.ones(2), nn.Identity(), threading.Lock())
    with pytest.raises(InputsError, match="an input is a Scaling that has tensors in it"):
        ArgumentCopies(FakeCopies(None)).of(given)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("options", [{"gpu": "h100-80gb"}, {"device": "cuda"}, {}])
def test_a_module_without_parameters(options: dict[str, Any]) -> None:
    with fake_mode(fake_cuda=not options):
        x = torch.randn(1024, 1024, device=None if options else "cuda")
    found = estimate(Doubled(), x, **options)
    assert found.device == "cuda:0"
    assert found.peak_bytes == 2 * x.nbytes


def test_autocast_is_of_the_device_that_is_run_on() -> None:
    with fake_mode(fake_cuda=True):
        x = torch.randn(256, 256, device="cuda")

    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    found = estimate(Product(), x, autocast="bf16", workspace_bytes=0)
    assert found.peak_bytes == x.nbytes * 5 // 2  # each operand is cast
