"""Copies of real tensors, modules, optimizers and generators inside a mode, against eager's."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.hooks import unserializable_hook

from torchfake import deferred_mode, fake_mode, is_deferred, is_fake, materialize_tensor
from torchfake.errors import ReplayError


def _shared() -> list[torch.Tensor]:
    base = torch.randn(10)
    return [base, base[2:5], base.view(2, 5), base, base.view(torch.int32)]


def _module() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4))
    module[3].weight = module[2].weight  # type: ignore[assignment]
    module(torch.randn(5, 3)).sum().backward()
    module.register_buffer("table", torch.arange(6.0))
    module.part = module.table[2:]  # type: ignore[assignment, index]
    return module


def _optimizer() -> Any:
    module = nn.Linear(3, 4)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return {"module": module, "optimizer": optimizer}


def _tensor_with_state() -> torch.Tensor:
    tensor: Any = torch.randn(4, 6)[1:, ::2].t().requires_grad_()
    tensor.sum().backward()
    tensor.tag = {"scale": torch.ones(2)}
    tensor.register_hook(unserializable_hook(lambda grad: grad))
    return tensor  # type: ignore[no-any-return]


OBJECTS: dict[str, Callable[[], Any]] = {
    "tensor": _tensor_with_state,
    "large": lambda: torch.randn(300, 400),
    "number": lambda: torch.tensor(3.5),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "parameter": lambda: nn.Parameter(torch.randn(4, 6)[:, ::2]),
    "buffer": lambda: nn.Buffer(torch.randn(3), persistent=False),
    "shared": _shared,
    "module": _module,
    "lstm": lambda: nn.LSTM(3, 4),
    "lazy": lambda: nn.LazyLinear(4),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
    "optimizer": _optimizer,
    "state dict": lambda: nn.Linear(3, 4).state_dict(),
    "generator": lambda: torch.Generator().manual_seed(3),
    "result": lambda: torch.ones(2, requires_grad=True) * 2,
}


def tensors_in(obj: Any) -> Iterator[torch.Tensor]:
    if isinstance(obj, torch.Tensor):
        yield obj
        if not nn.parameter.is_lazy(obj) and obj.is_leaf and obj.grad is not None:
            yield obj.grad
        yield from tensors_in({k: v for k, v in obj.__dict__.items() if k != "_real_counterpart"})
    elif isinstance(obj, nn.Module):
        tensors = [*obj.named_parameters(remove_duplicate=False), *obj.named_buffers()]
        yield from tensors_in(dict(tensors))
        yield from tensors_in(obj.__dict__.get("part"))
    elif isinstance(obj, torch.optim.Optimizer):
        yield from tensors_in(obj.state_dict())
    elif isinstance(obj, dict):
        yield from tensors_in(list(obj.values()))
    elif isinstance(obj, (list, tuple)):
        for item in obj:
            yield from tensors_in(item)


def described(obj: Any) -> Any:
    tensors = list(tensors_in(obj))
    keys = [0 if nn.parameter.is_lazy(t) else t.untyped_storage()._cdata for t in tensors]
    ties = [keys.index(key) for key in keys]
    same = [[t is other for t in tensors].index(True) for other in tensors]
    return ties, same, [_described_tensor(t) for t in tensors]


def _described_tensor(tensor: Any) -> Any:
    kinds = isinstance(tensor, nn.Parameter), isinstance(tensor, nn.Buffer), tensor.requires_grad
    if nn.parameter.is_lazy(tensor):
        return kinds
    place = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device
    return kinds, place, tensor.is_conj(), tensor._backward_hooks or None


@pytest.mark.parametrize("copy_of", [copy.deepcopy, copy.copy], ids=["deep", "shallow"])
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", OBJECTS)
def test_real_objects_are_copied_as_in_eager(name: str, mode: Any, copy_of: Any) -> None:
    original = OBJECTS[name]()
    try:
        expected = copy_of(original)
    except RuntimeError as error:
        with mode(), pytest.raises(RuntimeError, match=re.escape(str(error))):
            copy_of(original)
        return
    with mode():
        copied = copy_of(original)
        if isinstance(copied, torch.Generator):
            assert torch.equal(copied.get_state(), expected.get_state())
    assert described(copied) == described(expected)
    tensors = list(tensors_in(copied))
    assert {is_fake(tensor) for tensor in tensors} <= {copy_of is copy.deepcopy}
    for tensor, real in zip(tensors, list(tensors_in(expected)), strict=True):
        if not nn.parameter.is_lazy(tensor) and (is_deferred(tensor) or not is_fake(tensor)):
            assert torch.equal(materialize_tensor(tensor), real)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_a_shallow_copy_is_a_view_of_the_memory(mode: Any) -> None:
    original = torch.zeros(3)
    with mode():
        copy.copy(original).add_(1)
    assert original.tolist() == [1, 1, 1]


def test_a_deferred_copy_of_what_is_written_later_is_refused() -> None:
    original = torch.zeros(3)
    with deferred_mode():
        copied = copy.deepcopy(original)
    original.add_(1)
    with pytest.raises(ReplayError, match="written in place since"):
        materialize_tensor(copied)


def test_small_copies_have_known_values() -> None:
    with fake_mode():
        assert copy.deepcopy(torch.arange(3)).tolist() == [0, 1, 2]


def test_a_conjugate_is_loaded_as_one() -> None:
    """C++ sets the bit of a tensor that is rebuilt."""
    file = io.BytesIO()
    torch.save(torch.ones(3, dtype=torch.complex64).conj(), file)
    file.seek(0)
    with fake_mode():
        loaded = torch.load(file)
        assert loaded.is_conj()
        assert not loaded.resolve_conj().is_conj()
        assert is_fake(loaded)


@pytest.mark.parametrize("options", [{}, {"fake_cuda": True}], ids=str)
def test_a_generator_is_saved_and_loaded(options: dict[str, Any]) -> None:
    """Also on a fake machine, where another object stands under the name of its class."""
    generator = torch.Generator().manual_seed(5)
    torch.randn(3, generator=generator)
    file = io.BytesIO()
    with fake_mode(**options):
        torch.save({"generator": generator}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)["generator"]
        pickled = pickle.loads(pickle.dumps(generator))
        for found in (loaded, pickled):
            assert torch.equal(found.get_state(), generator.get_state())


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_deep_copies_have_the_versions_of_eager(mode):
    def versions(x):
        views = x, x.conj(), x.conj().imag, x.real, torch.nn.Parameter(x.real.clone())
        return [copy.deepcopy(each)._version for each in views]

    real = torch.randn(3, dtype=torch.complex64)
    expected = versions(real)
    with mode():
        assert versions(real) == versions(torch.randn(3, dtype=torch.complex64)) == expected
