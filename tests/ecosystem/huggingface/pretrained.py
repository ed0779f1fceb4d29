"""Loading a saved model in a mode, compared with loading it in eager.

Enters: a function that loads a model. Leaves: AssertionError where the fakes have other metadata
than the real tensors, or the materialized values are not the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake import deferred_mode, fake_mode, is_deferred, is_fake, materialize_module


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by all of their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def ties_of(tensors: dict[str, torch.Tensor]) -> set[frozenset[str]]:
    """The names of each tensor that has several."""
    by_tensor: dict[int, set[str]] = {}
    for name, tensor in tensors.items():
        by_tensor.setdefault(id(tensor), set()).add(name)
    return {frozenset(names) for names in by_tensor.values() if len(names) > 1}


def metadata(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All that a fake has in common with the real tensor."""
    layout = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return (*layout, tensor.requires_grad, is_parameter, tensor.untyped_storage().nbytes())


def assert_same_metadata(module: torch.nn.Module, eager: torch.nn.Module) -> None:
    """Of all parameters and buffers, ties included."""
    own, expected = tensors_of(module), tensors_of(eager)
    assert own.keys() == expected.keys()
    for name, tensor in own.items():
        assert metadata(tensor) == metadata(expected[name]), name
    assert ties_of(own) == ties_of(expected)


def assert_same_values(module: torch.nn.Module, eager: torch.nn.Module) -> None:
    """Bit for bit."""
    expected = tensors_of(eager)
    for name, tensor in tensors_of(module).items():
        bits = (t.detach().contiguous().flatten() for t in (tensor, expected[name]))
        own, other = (t.view(torch.uint8) if t.numel() else t for t in bits)
        assert not is_fake(tensor), name
        assert torch.equal(own, other), name


def assert_loads_as_eager(load: Callable[[], Any], seed: int = 7) -> None:
    """As fakes, and as deferred tensors that are materialized; generators end where eager's do."""
    torch.manual_seed(seed)
    eager = load()
    state = torch.get_rng_state()

    torch.manual_seed(seed)
    before = torch.get_rng_state()
    with fake_mode():
        fake = load()
    assert all(map(is_fake, tensors_of(fake).values()))
    assert_same_metadata(fake, eager)
    assert torch.equal(torch.get_rng_state(), before)

    torch.manual_seed(seed)
    with deferred_mode():
        deferred = load()
    assert all(map(is_deferred, tensors_of(deferred).values()))
    assert_same_metadata(deferred, eager)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_values(materialize_module(deferred), eager)
    assert_same_metadata(deferred, eager)
