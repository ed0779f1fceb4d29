"""The one place where answerers are asked for unknown values.

Input: a fake whose value a program reads, or on which a shape depends. Output: a checked answer, or
None: then the caller raises an UnknownValueError. Invariant: each answerer is asked at most once,
from the innermost context outwards; the answerer that answers lists the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._core import modes, source_location
from torchfake._core.schemas import traits_of
from torchfake._core.storage import UpperBound
from torchfake._torch import dispatcher
from torchfake._torch.contexts import Restoring
from torchfake._unknown_values.answer_log import Answers
from torchfake._unknown_values.question import Question, checked_count, checked_value
from torchfake._unknown_values.typical_answers import Typical

AnswerFunction = Callable[[Question], Any]

_NAMED: dict[str, Callable[[], AnswerFunction]] = {"typical": Typical}


class Answerer:
    """The answerer of one mode or context, and the answers given there."""

    def __init__(self, answer: str | AnswerFunction | None) -> None:
        self.answers = Answers()
        self.name = answer if isinstance(answer, str) else getattr(answer, "__name__", str(answer))
        self._function = None if answer is None else _function_of(answer)
        self._is_asked = False  # the answer function may itself read unknown values

    def ask(self, question: Question) -> Any:
        """Return the answer to `question`; None if this answerer declines."""
        if self._function is None or self._is_asked:
            return None
        self._is_asked = True
        try:
            with dispatcher.in_fake_slot(None):
                return self._function(question)
        finally:
            self._is_asked = False


def _function_of(answer: Any) -> AnswerFunction:
    if isinstance(answer, str):
        if answer not in _NAMED:
            names = ", ".join(map(repr, _NAMED))
            raise ValueError(f"answer={answer!r}: the named answers are {names}")
        return _NAMED[answer]()
    if not callable(answer):
        raise TypeError(
            "answer is a function that takes a torchfake.Question, or one of "
            f"{', '.join(map(repr, _NAMED))}, not {answer!r}"
        )
    return answer  # type: ignore[no-any-return]


class answering_by(Restoring):
    """A context in which the questions of this thread are put to `answerer` first."""

    def __init__(self, answerer: Answerer) -> None:
        self._entry = modes.AnsweringContext(0, answerer)

    def change(self) -> Answers:
        depth = len(modes.thread.modes)  # a mode may have been entered after __init__
        self._entry = self._entry._replace(depth=depth)
        modes.thread.answering.append(self._entry)
        answers: Answers = self._entry.answerer.answers
        return answers

    def restore(self) -> None:
        if self._entry in modes.thread.answering:
            modes.thread.answering.remove(self._entry)


def value_of(fake: Any, asked_by: str) -> torch.Tensor | None:
    """The values of `fake` by an answerer; None if no answerer gives them."""
    return _ask(fake, asked_by, None, checked_value)  # type: ignore[no-any-return]


def truth_of(fake: Any, asked_by: str) -> bool | None:
    """The boolean that `asked_by` computes from `fake`, by an answerer; None if none gives it."""
    answer = _ask(fake, asked_by, ((), torch.bool), checked_value)
    return None if answer is None else bool(answer)


def count_of(fake: Any, asked_by: str, lowest: int, highest: int | None) -> int | None:
    """The number of rows that `asked_by` finds in `fake`, by an answerer; None if none gives it."""
    answer = _ask(fake, asked_by, None, checked_count, (lowest, highest))
    return None if answer is None else int(answer)


def _ask(fake: Any, asked_by: str, asked: Any, check: Any, bounds: Any = None) -> Any:
    answerers = modes.answerers()
    if not answerers:
        return None
    question = _question(fake, asked_by, asked, bounds)
    for answerer in answerers:
        answer = answerer.ask(question)
        if answer is not None:
            with dispatcher.no_interception(), dispatcher.in_fake_slot(None):
                checked = check(question, answer)
            answerer.answers.add(question, answer, answerer.name)
            return checked
    return None


def note(fake: Any, asked_by: str, answer: Any, answered_by: str) -> None:
    """List an answer that was given without asking, in the innermost mode. In an initializer whose
    call is recorded, nothing is listed: the replay answers its questions again.
    """
    answerers = modes.answerers()
    if answerers and not modes.is_in_recorded_initializer():
        answerers[0].answers.add(_question(fake, asked_by, None, None), answer, answered_by)


def _question(fake: Any, asked_by: str, asked: Any, bounds: Any) -> Question:
    meta, storage = fake._fake_meta, fake._fake_storage
    shape, dtype = (meta.size, meta.dtype) if asked is None else asked
    largest = storage.value.number if type(storage.value) is UpperBound else None
    lowest, highest = (0, largest) if bounds is None else bounds
    return Question(
        kind="value" if bounds is None else "count",
        asked_by=asked_by,
        asked_at=source_location.text_of(source_location.caller_location(2)),
        tensor=fake,
        shape=tuple(shape),
        dtype=dtype,
        device=meta.device,
        operator="" if storage.op is None else traits_of(storage.op).name,
        made_at=source_location.text_of(storage.location),
        lowest=lowest,
        highest=highest,
    )
