"""DataLoader inside a mode, and of fakes after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.behaviour.conftest import matrix
from tests.conftest import (
    all_fake,
    assert_outlives,
    describe,
    generators_stand_still,
)
from torchfake import deferred_mode, fake_mode


class Rows(torch.utils.data.Dataset):
    """Ten items made in the process that loads them."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)), index


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_dataloader_inside(num_workers: int, shuffle: bool) -> None:
    """Batches are fakes of eager's metadata; a shuffle moves no global generator."""
    given = {"batch_size": 4, "shuffle": shuffle, "num_workers": num_workers}

    def load() -> Any:
        return [list(batch) for batch in torch.utils.data.DataLoader(Rows(), **given)]

    expected = describe(load())
    with generators_stand_still(), fake_mode():
        batches = load()
    assert describe(batches) == expected
    assert all_fake(batches)


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_workers_forked_in_a_mode_have_values(mode: Any) -> None:
    with mode():
        loader = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2, timeout=60)
        assert [indices.tolist() for _, indices in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with mode():
        rows = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2, timeout=60)
        assert [batch[:, 1].tolist() for batch, _ in rows][2] == [8.0, 9.0]


def test_dataloader_shuffle_is_a_permutation() -> None:
    """Index draws keep their values: each row once, and the order is eager's for the seed."""
    data = torch.utils.data.TensorDataset(torch.arange(12))

    def order() -> list[int]:
        torch.manual_seed(3)
        loader = torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)
        return [i for (batch,) in loader for i in batch.tolist()]

    expected = order()
    with fake_mode():
        assert order() == expected


def test_dataloader_of_fakes_after_the_mode() -> None:
    """A dataset of fakes collates to fakes."""

    def load(x: torch.Tensor) -> Any:
        data = torch.utils.data.TensorDataset(x)
        return [list(batch) for batch in torch.utils.data.DataLoader(data, batch_size=2)]

    assert_outlives(matrix, load)
