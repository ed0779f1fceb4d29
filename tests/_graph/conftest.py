"""What tests of the graph share: the node behind a deferred tensor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchfake._graph.operations import Contents, Op
from torchfake._random import recorded_draws


@pytest.fixture(autouse=True)
def no_draw_is_pending() -> Iterator[None]:
    """A draw after a test does not depend on uncounted ones of the test, which it would keep."""
    yield
    recorded_draws.reset(torch.default_generator)


def contents_of(tensor: torch.Tensor) -> Contents:
    contents: Contents = tensor._fake_storage.deferred.contents  # type: ignore[attr-defined]
    return contents


def op_of(tensor: torch.Tensor) -> Op:
    """The operation that wrote the storage of a deferred tensor last."""
    op = contents_of(tensor).op
    assert op is not None
    return op
