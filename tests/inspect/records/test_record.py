"""What a record says about attributes that it does not have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pytest

from torchfake.inspect.records.record import Record


@dataclass(frozen=True, repr=False)
class Failing(Record):
    size: int = 3

    @property
    def plain(self) -> int:
        return self.size.missing  # type: ignore[attr-defined, no-any-return]

    @cached_property
    def cached(self) -> int:
        return self.size.missing  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("name", ["plain", "cached"])
def test_an_attribute_error_inside_a_property_is_not_hidden(name: str) -> None:
    with pytest.raises(AttributeError, match="'int' object has no attribute 'missing'"):
        getattr(Failing(), name)


def test_an_attribute_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(AttributeError, match=r"Failing has no attribute 'sizes'; it has .*size"):
        Failing().sizes  # type: ignore[attr-defined]  # noqa: B018
