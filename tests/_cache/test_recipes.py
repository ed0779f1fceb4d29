"""A recipe says whether the value of a result is computed, and how the call is recorded."""

from __future__ import annotations

import pytest
import torch

from tests._cache.conftest import unknown
from torchfake import deferred_mode, fake_mode, materialize_tensor
from torchfake._cache import cache
from torchfake._cache.recipes import Recipe


def _recipes(op: torch._ops.OpOverload) -> list[Recipe]:
    tables = cache.tables.get(id(op), {}).values()
    return [recipe for table in tables for recipe in table.recipes.values()]


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", False)  # recipes are used
    monkeypatch.setattr(cache.settings, "enabled", True)
    cache.clear()


def test_a_known_value_is_forgotten_where_a_deferred_one_is_written() -> None:
    with deferred_mode():
        deferred = torch.ones(3)
    for _ in range(3):
        with fake_mode():
            known = torch.zeros(3)
            known.add_(deferred)
        assert not known._fake_storage.is_known


def test_plain_arguments_and_values() -> None:
    with fake_mode():
        torch.zeros(3).add_(torch.ones(3))
        unknown(3).add_(unknown(3))
    by_values = {r.computes_values: r for r in _recipes(torch.ops.aten.add_.Tensor)}
    assert set(by_values) == {False, True}
    assert all(recipe.has_plain_arguments for recipe in by_values.values())
    assert by_values[False].returned_argument == by_values[True].returned_argument == 0
    assert by_values[False].write is None
    assert by_values[True].write is not None  # the value is computed when it is read
    cache.clear()
    with deferred_mode():
        torch.empty(3).add_(torch.empty(3))
    (recipe,) = _recipes(torch.ops.aten.add_.Tensor)
    assert recipe.is_recorded
    assert not recipe.has_plain_arguments


def test_some_unknown_is_all_unknown() -> None:
    """The result of an out-of-place operator has a known value only if all arguments have one."""
    with fake_mode():
        for _ in range(2):
            for a in (torch.zeros(3), unknown(3)):
                for b in (torch.ones(3), unknown(3)):
                    made = torch.atan2(a, b)
                    both = a._fake_storage.is_known and b._fake_storage.is_known
                    assert made._fake_storage.is_known == both
    assert len(_recipes(torch.ops.aten.atan2.default)) == 2


def test_hits_are_recorded_as_misses_are() -> None:
    def program() -> list[torch.Tensor]:
        x = torch.empty(4, 4).uniform_()
        x.add_(1).mul_(x)
        return [x, x @ x, x.mul(2.0), x.sum(0, dtype=torch.float64), torch.zeros(2), torch.randn(3)]

    torch.manual_seed(5)
    expected = [program() for _ in range(3)]
    torch.manual_seed(5)
    with deferred_mode():
        made = [program() for _ in range(3)]
    assert any(r.recording is not None for r in _recipes(torch.ops.aten.mm.default))
    for ours, eager in zip(made, expected, strict=True):
        for tensor, value in zip(ours, eager, strict=True):
            assert torch.equal(materialize_tensor(tensor), value)
