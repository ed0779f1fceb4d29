"""Copies of tensors that share memory, some of which are real already, share memory as in eager."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import (
    deferred_init,
    deferred_mode,
    dematerialize_module,
    fake_like,
    fake_mode,
    is_fake,
    materialize_module,
    materialize_tensor,
)


def _views() -> list[Any]:
    base = torch.randn(3, 4)
    return [base, base[1:], base.t(), base.view(torch.int32), base]


def _complex() -> list[Any]:
    base = torch.randn(4, dtype=torch.complex64)
    return [base, base.real, base.conj(), base[1:]]


def _module() -> list[Any]:
    """With a tied weight, views of it, and a buffer that is another's part."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    module.register_buffer("weights", module[0].weight.detach().t())
    module.register_buffer("full", torch.randn(4))
    module.register_buffer("part", module.full[1:3])  # type: ignore[index]
    return [module]


def _two_modules() -> list[Any]:
    base, modules = torch.randn(4), [nn.Module(), nn.Module()]
    modules[0].register_buffer("full", base)
    modules[1].register_buffer("part", base[1:])
    modules[1].register_buffer("tied", base)
    return modules


def _parameters() -> list[Any]:
    first = nn.Parameter(torch.randn(4))
    rest = nn.Parameter(first.data[1:], requires_grad=False)
    return [nn.ParameterList([first, rest, first]), first.detach()]


def _with_state() -> list[Any]:
    tensor, grad = torch.randn(4, requires_grad=True), torch.ones(4)
    tensor.grad = grad
    other: Any = grad[2:]
    other.tag = [tensor.detach()[1:]]
    return [tensor, other]


OBJECTS = [_views, _complex, _module, _two_modules, _parameters, _with_state]


def _one_memo(objects: list[Any]) -> list[Any]:
    memo: dict[int, Any] = {}
    return [copy.deepcopy(each, memo) for each in objects]


def _saved(objects: list[Any]) -> Any:
    file = io.BytesIO()
    torch.save(objects, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[list[Any]], Any]] = {
    "deep copy": copy.deepcopy,
    "copy of a copy": lambda objects: copy.deepcopy(copy.deepcopy(objects)),
    "one memo": _one_memo,
    "backwards": lambda objects: copy.deepcopy(objects[::-1])[::-1],
    "torch.save": _saved,
}


def _tensors(obj: Any) -> Iterator[torch.Tensor]:
    if isinstance(obj, torch.Tensor):
        yield obj
        if obj.is_leaf and obj.grad is not None:
            yield obj.grad
        yield from _tensors(obj.__dict__.get("tag", ()))
    elif isinstance(obj, nn.Module):
        tensors = obj.named_parameters(remove_duplicate=False), obj.named_buffers()
        yield from _tensors([t for named in tensors for _, t in named])
    else:
        for each in obj:
            yield from _tensors(each)


def _materialize(tensors: Any) -> None:
    for tensor in tensors:
        if is_fake(tensor):
            materialize_tensor(tensor)


def _described(objects: Any) -> list[Any]:
    """Kinds, places, identities and values, and the values after a write to each of the tensors."""
    tensors = list(_tensors(objects))
    found: list[Any] = [
        (type(t), t.shape, t.stride(), t.storage_offset(), t.dtype, t.is_conj(), t.requires_grad)
        for t in tensors
    ]
    found.append([[t is other for t in tensors].index(True) for other in tensors])
    for number, tensor in enumerate(tensors):
        found.append([t.tolist() for t in tensors])
        with torch.no_grad():
            tensor[(0,) * tensor.dim()] = number + 2
    return [*found, [t.tolist() for t in tensors]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", OBJECTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("mode", [nullcontext, deferred_mode], ids=["outside", "inside"])
def test_copies_share_memory_whatever_was_real(mode: Any, make: Any, way: str) -> None:
    if way == "torch.save" and make in (_views, _complex):
        pytest.skip("torch refuses to save memory that is of two dtypes")
    torch.manual_seed(0)
    original = make()
    expected = _described(WAYS[way](original)), _described(original)
    numbers = range(len(list(_tensors(original))))
    if make is _with_state:  # not the gradient, which is another object once real
        numbers = range(3) if way == "torch.save" else range(1)
    for chosen in (each for n in range(len(numbers) + 1) for each in combinations(numbers, n)):
        torch.manual_seed(0)
        module = deferred_init(make)
        tensors = list(_tensors(module))
        _materialize(tensors[number] for number in chosen)
        with mode():
            copied = WAYS[way](module)
        for each in (copied, module):
            _materialize(list(_tensors(each)))
        assert (_described(copied), _described(module)) == expected, chosen


@pytest.mark.parametrize("mode", [nullcontext, deferred_mode], ids=["outside", "inside"])
@pytest.mark.parametrize("position", range(3))
def test_storage_objects_are_copied_with_their_tensors(mode: Any, position: int) -> None:
    def make() -> list[Any]:
        base = torch.zeros(4)
        return [base, base[1:]]

    tensors = deferred_init(make)
    _materialize(tensors[1:])
    objects = list(tensors)
    objects.insert(position, tensors[1].untyped_storage())
    with mode():
        copied = copy.deepcopy(objects)
        storage = copied.pop(position)
        storage.fill_(1)
    _materialize(copied)
    assert copied[0].view(torch.uint8).tolist() == [1] * 16
    assert copied[1].untyped_storage()._cdata == copied[0].untyped_storage()._cdata
    assert tensors[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["full", "part"])
def test_plain_fakes_share_memory(name: str) -> None:
    """Of ``fake_like``, and of a copy inside of ``fake_mode``."""
    module = deferred_init(_module)[0]
    materialize_tensor(getattr(module, name))
    fakes = [fake_like(module)]
    with fake_mode():
        fakes.append(copy.deepcopy(module))
    for fake in fakes:
        assert is_fake(fake.full)
        assert fake.full.untyped_storage()._cdata == fake.part.untyped_storage()._cdata


@pytest.mark.parametrize("name", ["full", "part"])
def test_a_module_that_was_partly_real_shares_memory_when_it_is_real_again(name: str) -> None:
    torch.manual_seed(0)
    expected = _described(_module())
    torch.manual_seed(0)
    modules = deferred_init(_module)
    materialize_tensor(getattr(modules[0], name))
    dematerialize_module(modules[0])
    materialize_module(modules[0])
    assert _described(modules) == expected
