"""Facts of fakes, and copies of programs that run in a mode of their own."""

from __future__ import annotations

import torch
from torch import nn

from torchfake import fake_mode, is_fake
from torchfake.observe import (
    Answerer,
    FakeCopies,
    held_tensors,
    known_value,
    metadata_of,
    mode_of_copies,
    no_mode,
    storage_of,
)


def test_views_share_a_storage_and_copies_do_not() -> None:
    with fake_mode():
        x = torch.empty(3, 4)
        assert storage_of(x) is storage_of(x.t())
        assert storage_of(x) is not storage_of(x.clone())
        assert storage_of(x).num_bytes == 48  # type: ignore[union-attr]
    assert storage_of(torch.ones(3)) is None


def test_equal_metadata_is_one_object() -> None:
    with fake_mode():
        x, y = torch.empty(3, 4), torch.empty(3, 4)
    assert metadata_of(x) is metadata_of(y)  # type: ignore[arg-type]
    assert metadata_of(x).size == (3, 4)  # type: ignore[arg-type]
    assert metadata_of(x).stride == (4, 1)  # type: ignore[arg-type]


def test_values_are_given_where_they_are_known() -> None:
    with fake_mode():
        known, unknown = torch.arange(3), torch.empty(3)
    assert known_value(known).tolist() == [0, 1, 2]  # type: ignore[union-attr]
    assert known_value(unknown) is None
    assert known_value(torch.ones(3)) is None


def test_without_a_mode_new_tensors_are_real() -> None:
    with fake_mode():
        with no_mode():
            assert not is_fake(torch.ones(3))
        assert is_fake(torch.ones(3))


def test_a_copied_program_runs_and_its_original_is_as_before() -> None:
    layer = nn.Linear(3, 4).requires_grad_(False)
    with torch.no_grad(), mode_of_copies(Answerer(None)):
        copies = FakeCopies(None, known=True)
        copy, x = copies.of_module(layer.requires_grad_()), copies.of(torch.ones(2, 3))
        copy(x).sum().backward()
        assert is_fake(copy.weight.grad)
    assert layer.weight.grad is None
    assert not is_fake(layer)


def test_tensors_that_a_tensor_consists_of() -> None:
    x = torch.ones(3)
    assert held_tensors(x) == [x]
