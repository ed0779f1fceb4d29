"""Dispatch rules, which torch calls instead of the dispatcher, return the dispatcher's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests._cache.conftest import unknown
from torchfake import _dispatch, deferred_mode, fake_mode
from torchfake._cache import cache, rules
from torchfake._core.storage import Storage
from torchfake._dispatch import FakeDispatch
from torchfake._torch import dispatcher

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _rules_from_the_first_call(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rules, "CALLS_BEFORE", 1)
    cache.clear()
    yield
    cache.clear()


class _Forbidden(dict[int, Any]):
    def __getitem__(self, _key: int) -> Any:
        raise AssertionError("no hit of a rule")


@pytest.fixture
def no_dispatch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after whose call any operation that is not a hit of a rule fails."""
    return lambda: monkeypatch.setattr(_dispatch, "_tables", _Forbidden())


def several(x: Tensor) -> list[Tensor]:
    made = [torch.empty(3, 4), torch.empty(3, 4, dtype=torch.int64), x + x, x + 1, x @ x.t()]
    made += [x.view(-1), F.gelu(x), F.softmax(x, -1), x.detach(), x.sum(0), x.sum()]
    made += [torch.add(x, x, alpha=2), F.layer_norm(x, (4,)), x[1], x.add_(x.new_empty(3, 4))]
    return [*made, x.mul_(1), x.to(torch.float64), torch.empty_like(x), F.linear(x, x, x[:, 0])]


def described(tensors: list[Tensor]) -> list[Any]:
    storages = [t._fake_storage for t in tensors]  # type: ignore[attr-defined]
    return [
        (t._fake_meta, t.grad_fn is None, s.op, s.num_bytes, s.device, s.value is None, s.deferred,  # type: ignore[attr-defined]
         s.location[0], storages.index(s), t._version)
        for t, s in zip(tensors, storages, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("requires_grad", [True, False])
def test_hits_of_rules_are_hits_of_the_cache(requires_grad: bool) -> None:
    def run() -> list[Any]:
        with fake_mode():
            return described(several(unknown(3, 4).requires_grad_(requires_grad) * 1))

    cache.settings.enabled = False
    try:
        expected = run()
    finally:
        cache.settings.enabled = True
    for _ in range(4):
        assert run() == expected
    assert cache.settings.checking or rules._layouts


def test_a_storage_made_by_a_rule_has_all_that_others_have() -> None:
    with fake_mode():
        for _ in range(3):
            made: Any = unknown(3) + unknown(3)
    for slot in set(Storage.__slots__) - {"__weakref__"}:
        assert hasattr(made._fake_storage, slot), f"_cache/rules sets no {slot}"


@pytest.mark.skipif(cache.settings.checking, reason="there are no hits")
def test_what_was_called_often_does_not_come_to_the_dispatcher(
    no_dispatch: Callable[[], None],
) -> None:
    with fake_mode():
        x = unknown(3, 4)
        for _ in range(3):
            x + x, x.relu_(), torch.empty(3, 4), x.sum(0), x.sum()
        no_dispatch()
        x + x, x.relu_(), torch.empty(3, 4), x.sum(0), x.sum()
        with pytest.raises(AssertionError, match="no hit"):
            x.sum(1, keepdim=True, dtype=torch.float64)


@pytest.mark.skipif(cache.settings.checking, reason="there are no hits")
def test_a_rule_is_made_when_a_signature_has_been_called_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "CALLS_BEFORE", 4)
    with fake_mode():
        x = unknown(3)
        for expected in (False, False, False, True, True):
            x.exp()
            assert ("aten::exp" in rules._layouts) is expected
        cache.clear()
        assert not rules._layouts
        assert dispatcher._rules_of("aten::exp").find(FakeDispatch) is None


def test_known_values_go_to_the_dispatcher() -> None:
    with fake_mode():
        for _ in range(4):
            assert not (unknown(2) + unknown(2))._fake_storage.is_known  # type: ignore[attr-defined]
            assert (torch.ones(2) + torch.ones(2)).tolist() == [2, 2]


def test_modes_of_users_come_first() -> None:
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with fake_mode():
        x = unknown(4, 4)
        for _ in range(3):
            x @ x
        with Watch(), FlopCounterMode(display=False) as flops:
            x @ x
    assert seen == [aten.mm.default]
    assert flops.get_total_flops() == 2 * 4**3


def test_deferred_modes_record() -> None:
    with fake_mode():
        for _ in range(3):
            unknown(3) + unknown(3)
    with deferred_mode():
        x = torch.empty(3)
        made: Any = x + x
    assert made._fake_storage.deferred is not None
    assert (made + made)._fake_storage.deferred is not None


def test_views_in_inference_mode() -> None:
    with fake_mode():
        x = unknown(4)
        for _ in range(3):
            assert not x.view(2, 2).is_inference()
        with torch.inference_mode():
            y = x + x
            assert y.is_inference()
            assert y.view(2, 2).is_inference()
            assert not x.view(2, 2).is_inference()
        assert y.view(2, 2).is_inference()
        assert not (y + y).is_inference()


def test_the_default_dtype_is_asked() -> None:
    with fake_mode():
        for _ in range(3):
            torch.empty(3)
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.empty(3).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_an_error_has_no_context_of_the_cache() -> None:
    with fake_mode():
        for _ in range(3):
            unknown(3) + unknown(3)
        with pytest.raises(RuntimeError) as caught:
            unknown(3) + unknown(4)
    assert caught.value.__context__ is None
