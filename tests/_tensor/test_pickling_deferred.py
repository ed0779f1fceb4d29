"""Deferred tensors, state dicts and modules are pickled as the real ones that they stand for."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle import bits
from torchfake import deferred_init, deferred_mode, is_fake, materialize_module, meta_init


def _saved(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


_WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "torch.save": _saved,
    "torch.save, mapped": lambda value: _saved(value, map_location="cpu"),
}
_every_way = pytest.mark.parametrize("way", _WAYS)


class Tied(nn.Module):
    """Two layers that share a weight, a buffer, and a class of parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)


def _pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    expected = Tied()
    torch.manual_seed(0)
    return expected, deferred_init(Tied)


@_every_way
def test_a_state_dict_is_eagers(way: str) -> None:
    expected, module = _pair()
    found = _WAYS[way](module.state_dict())
    assert list(found) == list(expected.state_dict())
    for name, wanted in expected.state_dict().items():
        assert type(found[name]) is torch.Tensor
        assert found[name].stride() == wanted.stride()
        assert bits(found[name]) == bits(wanted), name
    eager = _WAYS[way](expected.state_dict())
    assert _is_tied(found) == _is_tied(eager)  # torch.save keeps ties, plain pickle does not


def _is_tied(state: dict[str, torch.Tensor]) -> bool:
    one, other = (state[name].untyped_storage() for name in ("head.weight", "embedding.weight"))
    return one._cdata == other._cdata


def test_a_file_is_eagers_byte_for_byte() -> None:
    expected, module = _pair()
    files = io.BytesIO(), io.BytesIO()
    torch.save(expected.state_dict(), files[0])
    torch.save(module.state_dict(), files[1])
    assert files[0].getvalue() == files[1].getvalue()


@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_a_module_is_real_again(way: str) -> None:
    expected, module = _pair()
    if way == "pickle":
        found = pickle.loads(pickle.dumps(module))
    else:
        found = _saved(module, weights_only=False)
    assert found.head.weight is found.embedding.weight
    for (name, parameter), wanted in zip(
        found.named_parameters(), expected.parameters(), strict=True
    ):
        assert type(parameter) is nn.Parameter
        assert parameter.requires_grad == wanted.requires_grad
        assert bits(parameter) == bits(wanted), name


def test_the_module_stays_deferred_and_is_materialized_with_the_same_values() -> None:
    expected, module = _pair()
    first = _saved(module.state_dict())
    assert is_fake(module.head.weight)
    copied = copy.deepcopy(module)
    for each in (module, copied):
        materialize_module(each)
        assert bits(each.head.weight) == bits(expected.head.weight) == bits(first["head.weight"])
        assert bits(each.head.bias) == bits(expected.head.bias)


@_every_way
def test_it_is_so_inside_of_a_mode(way: str) -> None:
    torch.manual_seed(0)
    expected = torch.randn(5)
    torch.manual_seed(0)
    with deferred_mode():
        content = pickle.dumps(torch.randn(5))
    assert torch.equal(pickle.loads(content), expected)


def test_views_conjugates_and_lazy_parameters() -> None:
    def program() -> list[Any]:
        base = torch.randn(3, 4, dtype=torch.complex64)
        return [base, base[1:].t(), base.conj(), torch.randn(4, requires_grad=True)]

    torch.manual_seed(0)
    expected = program()
    torch.manual_seed(0)
    with deferred_mode():
        tensors, lazy = program(), nn.LazyLinear(3)
    found = _saved(tensors)
    for one, other in zip(found, expected, strict=True):
        assert (one.stride(), one.is_conj(), one.requires_grad) == (
            other.stride(), other.is_conj(), other.requires_grad
        )  # fmt: skip
        assert torch.equal(one, other)
    assert found[0].untyped_storage()._cdata == found[1].untyped_storage()._cdata
    layer = pickle.loads(pickle.dumps(lazy))
    assert type(layer.weight) is nn.UninitializedParameter


def test_modules_that_report_meta() -> None:
    torch.manual_seed(0)
    expected = nn.Linear(3, 4)
    torch.manual_seed(0)
    with meta_init():
        module = nn.Linear(3, 4)
    assert bits(_saved(module.state_dict())["weight"]) == bits(expected.weight)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_is_saved_by_itself_and_refused_beside_its_tensor_as_in_eager() -> None:
    def save(mode: Any) -> tuple[bytes, str]:
        torch.manual_seed(0)
        file = io.BytesIO()
        with mode():
            tensor = torch.randn(4)
            torch.save({"storage": tensor.untyped_storage(), "y": torch.ones(2)}, file)
            with pytest.raises(RuntimeError) as error:
                torch.save([torch.rand(2), tensor, tensor.untyped_storage()], io.BytesIO())
        file.seek(0)
        loaded = torch.load(file, weights_only=False)["storage"]
        return bytes(loaded.untyped().tolist()), str(error.value)

    assert save(deferred_mode) == save(contextlib.nullcontext)
