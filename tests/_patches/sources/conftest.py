"""What the tests of learned calls share: that nothing is learned before a test, or after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchfake._cache import cache


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is not compared with the kernels, which runs functions of torch too."""
    monkeypatch.setattr(cache.settings, "checking", False)


@pytest.fixture
def nothing_learned() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()
