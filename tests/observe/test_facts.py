"""Facts of fakes, and copies of programs that run in a mode of their own."""

from __future__ import annotations

import torch
from torch import nn

from torchfake import fake_mode, is_fake
from torchfake.observe import (
    Answerer,
    FakeCopies,
    assume_value,
    held_tensors,
    known_value,
    metadata_of,
    mode_of_copies,
    no_mode,
    set_known_value,
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


def test_a_value_may_be_set() -> None:
    with fake_mode():
        whole, part = torch.empty(3), torch.empty(3)[:2]
    set_known_value(whole, torch.tensor([1.0, 2.0, 3.0]))  # type: ignore[arg-type]
    set_known_value(part, torch.tensor([1.0, 2.0]))  # type: ignore[arg-type]
    assert whole.tolist() == [1.0, 2.0, 3.0]
    assert known_value(part) is None


def test_what_is_assumed_is_listed_with_the_answers() -> None:
    with fake_mode(answer="typical") as mode:
        counts = torch.empty(2, dtype=torch.int64)
        with no_mode():
            equal = torch.tensor([3, 3])
        assume_value(counts, equal, "aten::histc", "balanced routing")  # type: ignore[arg-type]
        assert counts.tolist() == [3, 3]
        is_finite = torch.empty(1).isfinite()
        assert known_value(is_finite) is None
        assert known_value(is_finite, "a message").tolist() == [True]  # type: ignore[union-attr]
    answered = [(each.asked_by, each.answered_by) for each in mode.answers]
    assert answered == [("aten::histc", "balanced routing"), ("a message", "finiteness")]


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
