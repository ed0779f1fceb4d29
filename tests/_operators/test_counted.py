"""Results whose length somebody answers have the metadata that eager gives at that length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import describe
from torchfake import Question, fake_like, fake_mode
from torchfake.errors import AnswerError, UnknownValueError

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": torch.nonzero,
    "nonzero of rows": lambda t: t.view(4, 6).nonzero(),
    "nonzero of three dims": lambda t: t.view(2, 3, 4).nonzero(),
    "nonzero of columns": lambda t: t.view(4, 6).t().nonzero(),
    "nonzero of a number": lambda t: t[0].nonzero(),
    "nonzero tuple": lambda t: t.view(4, 6).nonzero(as_tuple=True),
    "argwhere": lambda t: torch.argwhere(t.view(4, 6)),
    "where": lambda t: torch.where(t > 0),
    "masked_select": lambda t: t.masked_select(t > 0),
    "masked_select of rows": lambda t: t.view(4, 6).masked_select(t.view(4, 6)[:1] > 0),
    "mask": lambda t: t[t > 0],
    "mask of rows": lambda t: t.view(4, 6)[t[:4] > 0],
    "mask of columns": lambda t: t.view(4, 6)[:, t[:6] > 0],
    "mask of columns, transposed": lambda t: t.view(4, 6).t()[:, t[:4] > 0],
    "mask of two dims": lambda t: t.view(2, 3, 4)[t.view(6, 4)[:, 0].view(2, 3) > 0],
    "mask and index": lambda t: t.view(4, 6)[t[:4] > 0, 1],
    "unique": torch.unique,
    "unique of integers": lambda t: t.long().unique(sorted=False),
    "unique with inverse": lambda t: t.view(4, 6).unique(return_inverse=True),
    "unique with counts": lambda t: t.view(4, 6).unique(return_counts=True),
    "unique with both": lambda t: t.unique(return_inverse=True, return_counts=True),
    "unique of bools": lambda t: (t > 0).unique(return_inverse=True),
    "unique rows": lambda t: t.view(6, 4).unique(dim=0),
    "unique columns": lambda t: t.view(6, 4).unique(dim=-1, return_inverse=True),
    "unique_consecutive": lambda t: t.unique_consecutive(return_inverse=True),
    "unique_consecutive with counts": lambda t: t.unique_consecutive(return_counts=True),
    "unique_consecutive rows": lambda t: t.view(6, 4).unique_consecutive(
        dim=0, return_inverse=True, return_counts=True
    ),
    "repeat_interleave": lambda t: torch.repeat_interleave(t.long().abs()),
    "repeat_interleave of rows": lambda t: t.view(6, 4).repeat_interleave(t[:6].long().abs(), 0),
    "bincount": lambda t: t.long().abs().bincount(),
    "bincount with minlength": lambda t: t.long().abs().bincount(minlength=9),
    "bincount with weights": lambda t: t.long().abs().bincount(t),
    "bincount with integer weights": lambda t: t.long().abs().bincount(t.int(), minlength=9),
}


def data() -> Tensor:
    some = [0, 1, 2, 0, 0, 2, 3, -1, 5, 0, 0, 0, 1, 1, 1, 2, 2, 0, 4, 0, 0, 7, -2, 0]
    return torch.tensor(some, dtype=torch.float32)


def lengths_of(result: Any) -> Iterator[int]:
    results = [result] if isinstance(result, Tensor) else result
    yield from (n for r in results for n in r.shape)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_of_an_answered_length_have_the_metadata_of_eager(name: str) -> None:
    expected = PROGRAMS[name](data())
    described = describe(expected)
    fake = fake_like(data())
    for count in sorted({*lengths_of(expected)}):
        with fake_mode(answer=lambda question, n=count: n) as mode:
            try:
                result = describe(PROGRAMS[name](fake))
            except (AnswerError, IndexError):
                continue  # another dim of the result is as long
        if result == described:
            assert {a.kind for a in mode.answers} == {"count"}
            return
    pytest.fail(f"no length gives {described}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_question_that_nobody_answers_is_an_error_as_before(name: str) -> None:
    mode = fake_mode(answer=lambda question: None)
    with mode, pytest.raises(UnknownValueError, match="answer="):
        PROGRAMS[name](fake_like(data()))
    assert not mode.answers


def test_what_only_one_length_is_possible_for_is_not_asked() -> None:
    with fake_mode():
        unknown = torch.empty(1, 3)
        assert unknown[0, :1].unique().shape == (1,)
        assert unknown[:, :0].nonzero().shape == (0, 2)
        assert torch.arange(3).repeat_interleave(unknown[0].long(), output_size=7).shape == (7,)


@pytest.mark.parametrize("answer", [-1, 25, True, 2.0, "many", [3], torch.tensor(3)])
def test_a_count_that_is_not_possible_is_an_error_that_names_it(answer: Any) -> None:
    with fake_mode(answer=lambda question: answer), pytest.raises(AnswerError) as caught:
        fake_like(data()).nonzero()
    assert repr(answer) in str(caught.value)
    assert "aten.nonzero.default" in str(caught.value)


def test_a_count_has_bounds() -> None:
    asked: list[Question] = []
    with fake_mode(answer=lambda question: asked.append(question)):
        fake = fake_like(data())
        for program in (fake.unique, fake.nonzero, lambda: fake.long().bincount(minlength=5)):
            with pytest.raises(UnknownValueError):
                program()
    assert [(q.lowest, q.highest) for q in asked] == [(1, 24), (0, 24), (5, None)]
