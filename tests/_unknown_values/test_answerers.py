"""Who answers a question about values that do not exist, what is accepted, what is listed."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import unknown
from torchfake import Answers, Question, answering, fake_like, fake_mode
from torchfake.errors import AnswerError, UnknownValueError


def test_a_function_is_asked_and_what_it_answers_is_listed() -> None:
    asked: list[Question] = []

    def answer(question: Question) -> float:
        asked.append(question)
        return 2.5

    with fake_mode(answer=answer) as mode:
        loss = torch.empty(9).sum()
        assert [loss.item() for _ in range(3)] == [2.5] * 3
    question, (listed,) = asked[0], mode.answers
    assert question.kind == listed.kind == "value"
    assert question.asked_by == listed.asked_by == "item()"
    assert question.operator == listed.operator == "aten.sum.default"
    assert question.shape == listed.shape == ()
    assert question.dtype == listed.dtype == torch.float32
    assert __file__ in question.asked_at
    assert __file__ in listed.made_at
    assert (listed.answer, listed.answered_by, listed.times) == (2.5, "answer", 3)
    assert "item(), float32[] of aten.sum.default: 2.5 (answer, 3 times) at " in repr(mode.answers)


def test_nothing_is_answered_without_an_answer() -> None:
    with fake_mode() as mode, pytest.raises(UnknownValueError, match="answer="):
        unknown(3).tolist()
    assert not mode.answers
    assert repr(mode.answers) == "no unknown value was read"


ACCEPTED: dict[str, tuple[torch.dtype, tuple[int, ...], Any, Any]] = {
    "bool": (torch.bool, (), True, True),
    "int": (torch.int64, (), 7, 7),
    "int as float": (torch.float32, (), 7, 7.0),
    "complex": (torch.complex64, (), 1 + 2j, 1 + 2j),
    "one number for all": (torch.float32, (2, 2), 0.5, [[0.5, 0.5], [0.5, 0.5]]),
    "list": (torch.int64, (3,), [1, 2, 3], [1, 2, 3]),
    "array": (torch.float64, (2,), np.array([1.0, 2.0]), [1.0, 2.0]),
    "tensor": (torch.float32, (2,), torch.tensor([1, 2]), [1.0, 2.0]),
    "bools": (torch.bool, (2,), [True, False], [True, False]),
    "expanded": (torch.float32, (2, 2), torch.ones(1, 2).expand(2, 2), [[1.0, 1.0], [1.0, 1.0]]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_answers_of_all_kinds(name: str) -> None:
    dtype, shape, answer, expected = ACCEPTED[name]
    fake = fake_like(torch.empty(shape, dtype=dtype))
    with answering(lambda question: answer):
        assert fake.tolist() == expected
        assert torch.as_tensor(fake.numpy()).tolist() == expected
        if not shape:
            assert fake.item() == expected


REFUSED: dict[str, tuple[torch.dtype, tuple[int, ...], Any]] = {
    "a number for a bool": (torch.bool, (), 1),
    "a bool for a number": (torch.float32, (), True),
    "a float for an int": (torch.int64, (), 1.5),
    "a complex for a float": (torch.float32, (), 1j),
    "out of range": (torch.int8, (), 300),
    "text": (torch.float32, (), "typical"),
    "too long": (torch.int64, (3,), [1, 2]),
    "floats for integers": (torch.int64, (2,), [1.0, 2.0]),
    "an unknown fake": (torch.float32, (3,), fake_like(torch.ones(3))),
    "an object": (torch.float32, (), object()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_answer_is_an_error_that_names_it(name: str) -> None:
    dtype, shape, answer = REFUSED[name]
    fake = fake_like(torch.empty(shape, dtype=dtype))
    with answering(lambda question: answer) as answers, pytest.raises(AnswerError) as caught:
        fake.tolist()
    assert repr(answer) in str(caught.value)
    assert "tolist()" in str(caught.value)
    assert not answers


def test_a_function_computes_with_real_tensors_and_may_answer_with_fakes() -> None:
    def answer(question: Question) -> torch.Tensor:
        made = torch.arange(3.0)
        assert type(made) is torch.Tensor
        return made

    with fake_mode(answer=answer):
        assert unknown(3).tolist() == [0.0, 1.0, 2.0]
        known = torch.arange(2.0)
    with answering(lambda question: known):
        assert unknown(2).tolist() == [0.0, 1.0]


def test_a_function_may_read_what_nobody_knows() -> None:
    """It is not asked for what it asks itself."""
    answers = answering(lambda question: question.tensor.sum().item())
    with answers as listed, pytest.raises(UnknownValueError):
        unknown(2).tolist()
    assert not listed


def test_the_innermost_is_asked_first_and_those_around_it_where_it_declines() -> None:
    def only(dtype: torch.dtype, number: Any) -> Any:
        return lambda question: number if question.dtype == dtype else None

    small = [fake_like(torch.ones((), dtype=d)) for d in (torch.int64, torch.float32, torch.bool)]
    outermost, mode = answering(lambda question: True), fake_mode(answer=only(torch.float32, 2.0))
    with outermost as outside, mode:
        with answering(only(torch.int64, 3)) as inside:
            assert [t.item() for t in small] == [3, 2.0, True]
        with pytest.raises(AnswerError):  # the outermost answers everything with True
            small[0].item()
    assert [len(a) for a in (outside, mode.answers, inside)] == [1, 1, 1]
    with pytest.raises(UnknownValueError):
        small[0].item()


def test_a_context_is_left_when_an_error_leaves_it() -> None:
    with pytest.raises(KeyError), answering(lambda question: {}["nothing"]):
        unknown(1).item()
    with pytest.raises(UnknownValueError):
        unknown(1).item()


def test_work_in_other_threads_is_answered_as_where_it_was_handed_over() -> None:
    fake = unknown(3)
    with fake_mode(answer=lambda question: 4.0) as mode, ThreadPoolExecutor(1) as pool:
        with answering(lambda question: None if question.shape else 5.0):
            handed = [pool.submit(fake.tolist), pool.submit(lambda: fake.sum().item())]
        assert [work.result() for work in handed] == [[4.0] * 3, 5.0]
    assert len(mode.answers) == 1


def test_answers_keep_no_tensor_alive() -> None:
    fake = unknown(3)
    reference = weakref.ref(fake)
    with answering("typical") as answers:
        fake.tolist()
    del fake
    gc.collect()
    assert reference() is None
    assert answers[0].shape == (3,)


def test_a_decorated_function_has_the_answers_of_its_mode() -> None:
    mode = fake_mode(answer="typical")
    assert mode(lambda: torch.empty(5).sum().item())() == 1.0
    assert len(mode.answers) == 1


def test_what_is_no_answer_at_all() -> None:
    for answer, kind in (("unheard-of", ValueError), (3, TypeError)):
        with pytest.raises(kind, match="'typical'"):
            fake_mode(answer=answer)  # type: ignore[arg-type]
        with pytest.raises(kind, match="'typical'"):
            answering(answer)  # type: ignore[arg-type]


def test_answers_are_a_sequence() -> None:
    with answering("typical") as answers:
        unknown(2).tolist()
        unknown(3).tolist()
    assert isinstance(answers, Answers)
    assert [a.shape for a in answers[:2]] == [(2,), (3,)]
    assert answers[-1].shape == (3,)
