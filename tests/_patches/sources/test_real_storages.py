"""Storages of real tensors are written inside a mode as outside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode
from torchfake.errors import UnknownValueError

MODES = {"fake": fake_mode, "cuda": lambda: fake_mode(fake_cuda=True), "deferred": deferred_mode}


def typed(storage: torch.UntypedStorage) -> Any:
    return torch.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)


WRITES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "fill_": lambda storage, other: storage.fill_(1),
    "an element": lambda storage, other: storage.__setitem__(2, 7),
    "a slice": lambda storage, other: storage.__setitem__(slice(1, 3), 7),
    "copy_": lambda storage, other: storage.copy_(other.untyped_storage()),
    "resize_": lambda storage, other: storage.resize_(8).resize_(4),
    "typed fill_": lambda storage, other: typed(storage).fill_(3),
    "typed element": lambda storage, other: typed(storage).__setitem__(1, 3),
    "typed copy_": lambda storage, other: typed(storage).copy_(typed(other.untyped_storage())),
    "clone": lambda storage, other: storage.clone().tolist(),
    "new": lambda storage, other: torch.UntypedStorage(3).fill_(5).tolist(),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_equals_eager(name: str, mode: str) -> None:
    def written(context: Any) -> tuple[Any, list[int]]:
        tensor = torch.arange(4, dtype=torch.uint8)
        other = torch.tensor([9, 8, 7, 6], dtype=torch.uint8)
        with context:
            result = WRITES[name](tensor.untyped_storage(), other)
        return result if isinstance(result, list) else type(result), tensor.tolist()

    assert written(MODES[mode]()) == written(nullcontext())


def test_a_fakes_storage_is_read_if_it_is_computed() -> None:
    real = torch.zeros(4, dtype=torch.uint8)
    with deferred_mode():
        real.untyped_storage().copy_(torch.ones(4, dtype=torch.uint8).untyped_storage())
    assert real.tolist() == [1, 1, 1, 1]
    with fake_mode(), pytest.raises(UnknownValueError, match="needs the memory of a fake"):
        real.untyped_storage().copy_(torch.ones(4, dtype=torch.uint8).untyped_storage())


def test_a_fakes_storage_is_written_with_the_bytes_given() -> None:
    with fake_mode():
        fake = torch.zeros(4, dtype=torch.uint8)
        fake.untyped_storage().fill_(3)
        fake.untyped_storage()[1] = 9
        assert fake.tolist() == [3, 9, 3, 3]
