"""``meta_init``: tensors report ``meta``, and materialize on the device that was named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle import assert_same
from torchfake import (
    clear_meta_init_cache,
    deferred_mode,
    errors,
    fake_mode,
    is_deferred,
    is_meta_init,
    materialize,
    meta_init,
)
from torchfake._graph.operations import Op


def test_a_linear() -> None:
    torch.manual_seed(0)
    eager = nn.Linear(3, 4)
    torch.manual_seed(0)
    with meta_init():
        layer = nn.Linear(3, 4)
    assert layer.weight.device == torch.device("meta")
    assert layer.weight.is_meta
    assert not layer.weight.is_cpu
    assert "device='meta'" in repr(layer.weight)
    assert is_deferred(layer)
    assert materialize(layer) is layer
    assert_same(eager, layer)


def test_submodules_one_at_a_time() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    with meta_init():
        module = build()
    materialize(module[1])
    assert module[0].weight.is_meta
    assert not module[1].weight.is_meta
    materialize(module[0])
    assert_same(eager, module)


def test_explicit_devices_are_overridden() -> None:
    with meta_init(fake_cuda=True):
        tensors = [
            torch.ones([3], device="cpu"),
            torch.ones([3], device="meta"),
            torch.ones([3], device=torch.ones(1).device),
            torch.ones(3).to("meta"),
            torch.ones(3).to("cpu"),
            torch.tensor([1.0, 1, 1], device="cpu"),
        ]
        on_cuda = torch.ones(3, device="cuda")
    for tensor in tensors:
        assert tensor.device == torch.device("meta")
        assert materialize(tensor).device == torch.device("cpu")
        assert tensor.tolist() == [1, 1, 1]
    assert on_cuda.device == torch.device("meta")
    with pytest.raises(errors.MaterializeError, match="recorded on cuda:0"):
        materialize(on_cuda)


def test_zeros_like_materializes_on_its_true_device() -> None:
    with meta_init():
        ones = torch.ones(3, device="cpu")
        zeros = torch.zeros_like(ones)
    later = torch.zeros_like(ones)
    for tensor in (zeros, later):
        assert tensor.is_meta
        assert materialize(tensor).device == torch.device("cpu")
        assert tensor.tolist() == [0, 0, 0]


@pytest.mark.parametrize("initialize", ["trunc_normal_", "orthogonal_", "sparse_", "eye_"])
def test_initializers_do_not_skip_meta_init_tensors(initialize: str) -> None:
    """torch.nn.init skips a real meta tensor; a meta_init tensor only reports meta."""
    args = (0.2,) if initialize == "sparse_" else ()
    torch.manual_seed(0)
    expected = getattr(nn.init, initialize)(torch.empty(20, 20), *args)
    torch.manual_seed(0)
    with meta_init():
        made = getattr(nn.init, initialize)(torch.empty(20, 20), *args)
    assert torch.equal(materialize(made), expected)


def test_is_meta_init() -> None:
    assert not is_meta_init()
    with meta_init():
        assert is_meta_init()
        with fake_mode():
            assert not is_meta_init()
        assert is_meta_init()
    with deferred_mode():
        assert not is_meta_init()


def count_calls(tensor: torch.Tensor) -> list[int]:
    """One item for each later call of the operator that computed `tensor`."""
    op: Op = tensor._fake_storage.deferred.contents.op  # type: ignore[attr-defined]
    calls: list[int] = []
    func = op.func

    def counting(*args: object, **kwargs: object) -> object:
        calls.append(1)
        return func(*args, **kwargs)

    op.func = counting
    return calls


@pytest.mark.parametrize("keep_cache", [True, False])
def test_single_tensors(keep_cache: bool) -> None:
    """An intermediate tensor is cached or computed again, with the same values."""
    with meta_init():
        t1 = torch.ones(3) + 1
        t2 = t1 + 2
    calls = count_calls(t1)
    assert materialize(t2, keep_cache=keep_cache).tolist() == [4, 4, 4]
    assert t1.is_meta
    assert materialize(t1, keep_cache=keep_cache).tolist() == [2, 2, 2]
    assert len(calls) == (1 if keep_cache else 2)
    clear_meta_init_cache()


def test_clearing_the_cache() -> None:
    with meta_init():
        t1 = torch.ones(3) + 1
        t2 = t1 + 2
    calls = count_calls(t1)
    materialize(t2, keep_cache=True)
    clear_meta_init_cache()
    clear_meta_init_cache()
    assert materialize(t1).tolist() == [2, 2, 2]
    assert len(calls) == 2


def test_what_cannot_be_materialized() -> None:
    with pytest.raises(ValueError, match="materialize takes a tensor or a module, not str"):
        materialize("weight")  # type: ignore[type-var]
    with fake_mode():
        plain = torch.ones(2)
    with pytest.raises(errors.NotDeferredError, match="not recorded"):
        materialize(plain)
    real = torch.ones(2)
    assert materialize(real) is real


def test_plain_attributes_of_modules_too() -> None:
    """As in materialize_module: tables of positions that are not buffers."""

    class Model(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            self.tables = {"positions": torch.arange(4)}

    with meta_init():
        model = Model()
    assert materialize(model).tables["positions"].tolist() == [0, 1, 2, 3]


_MOVES: dict[str, Any] = {
    "to_empty": lambda module, device: module.to_empty(device=device),
    "to": lambda module, device: module.to(device),
    "to, by name": lambda module, device: module.to(device=device),
    "to, with a dtype": lambda module, device: module.to(device, torch.float64),
    "empty_like": lambda module, device: module._apply(
        lambda tensor: torch.empty_like(tensor, device=device)
    ),
    "own method": lambda module, device: getattr(module, str(device).partition(":")[0])(),
}


@pytest.mark.parametrize("device", ["cpu", "cuda:0", torch.device("cpu")])
@pytest.mark.parametrize("name", _MOVES)
def test_afterwards_a_module_reports_the_device_that_it_is_moved_to(name: str, device: Any) -> None:
    for _ in range(2):  # the second time from the cache
        torch.manual_seed(0)
        with meta_init():
            module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        _MOVES[name](module, device)
        for tensor in (*module.parameters(), *module.buffers()):
            assert tensor.device == torch.device(device)
            assert not tensor.is_meta


def test_moved_to_the_cpu_it_is_materialized_with_its_values() -> None:
    torch.manual_seed(0)
    expected = nn.Linear(3, 4)
    for name in ("to", "own method", "to_empty"):
        torch.manual_seed(0)
        with meta_init():
            module = nn.Linear(3, 4)
        assert torch.equal(materialize(_MOVES[name](module, "cpu")).weight, expected.weight)


def test_a_dtype_alone_and_the_mode_itself_keep_meta() -> None:
    with meta_init():
        module = nn.Linear(3, 4)
        for name in _MOVES:
            assert _MOVES[name](nn.Linear(3, 4), "cpu").weight.is_meta
    assert module.half().weight.is_meta
    assert module.to(torch.float64).weight.is_meta
    assert module.to("meta").weight.is_meta


def test_an_optimizer_steps_on_a_module_that_was_moved() -> None:
    torch.manual_seed(0)
    with meta_init():
        module = nn.Linear(3, 4)
    module.to_empty(device="cpu")
    module.reset_parameters()
    module(torch.ones(2, 3)).sum().backward()
    torch.optim.AdamW(module.parameters()).step()
    assert module.weight.device == torch.device("cpu")
