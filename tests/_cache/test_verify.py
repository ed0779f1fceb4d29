"""``TORCHFAKE_CHECK_CACHE=1`` finds a wrong recipe, and the error names the differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests._cache.conftest import unknown
from torchfake import fake_mode
from torchfake._cache import cache, recipes
from torchfake._core import metadata
from torchfake.errors import CacheError

FIRST = recipes.ArgumentPath(0)


def test_checking_finds_a_wrong_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", True)
    with fake_mode():
        x = unknown(3)
        x + x
        x + x  # compared, and right
        (table,) = cache.tables[id(torch.ops.aten.add.Tensor)].values()
        (recipe,) = table.checked.values()
        recipe.outcome = recipes.NewResult(unknown(4)._fake_meta, 0)
        with pytest.raises(CacheError, match=r"aten\.add\.Tensor"):
            x + x


WRONG: dict[str, tuple[Callable[[Tensor], Any], Any, str]] = {
    "metadata": (lambda x: x + x, lambda r, x: recipes.NewResult(unknown(4)._fake_meta, 0), "4"),
    "alias": (lambda x: x.view(3), lambda r, x: recipes.NewResult(r.outcome.record, 0), "argument"),
    "no alias": (
        lambda x: x + x,
        lambda r, x: recipes.ViewResult(r.outcome.record, FIRST),
        "no view",
    ),
    "argument": (lambda x: x + x, lambda r, x: recipes.ArgumentResult(FIRST), "is not argument"),
    "constant": (lambda x: x.relu_(), lambda r, x: recipes.ConstantResult(3), "not 3"),
    "several": (lambda x: x.split(1), lambda r, x: r.outcome[:2], "not 2 results"),
}
"""Programs, each with a wrong outcome for its recipe and the text of the resulting error."""


@pytest.mark.parametrize(("program", "wrong", "message"), WRONG.values(), ids=WRONG)
def test_checking_reports_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, program: Any, wrong: Any, message: str
) -> None:
    monkeypatch.setattr(cache.settings, "checking", True)
    with fake_mode():
        x = unknown(3)
        program(x)
        (*_, tables) = cache.tables.values()
        ((recipe,),) = [table.checked.values() for table in tables.values()]
        recipe.outcome, recipe.new_storage_bytes = wrong(recipe, x), (12,)
        with pytest.raises(CacheError, match=message):
            program(x)


def test_checking_compares_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", True)
    with fake_mode():
        torch.ones(3)
        (*_, tables) = cache.tables.values()
        ((recipe,),) = [table.checked.values() for table in tables.values()]
        recipe.fill = recipe.fill._replace(number=2)
        with pytest.raises(CacheError, match="the value of the result"):
            torch.ones(3)


def test_records_of_a_table_that_was_cleared_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal records that are different objects, since the table was cleared, do not differ."""
    monkeypatch.setattr(cache.settings, "checking", True)
    with fake_mode():
        x = torch.ones(3, 5)
        (x + x).t()
        monkeypatch.setattr(metadata, "_MAX_INTERNED", 0)
        x = torch.ones(3, 5)
        assert (x + x).t().shape == (5, 3)
