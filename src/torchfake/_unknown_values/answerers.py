"""The one place where values that do not exist are asked for.

Input: a fake whose value a program reads, or on which a shape depends. Output: an answer that fits,
or None: then the caller raises an UnknownValueError. Invariant: answerers are asked once, from the
innermost context outwards; the answerer that answers lists the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._core import modes, source_location
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
        self._is_asked = False  # by what it asks itself, it is not asked again

    def ask(self, question: Question) -> Any:
        """Its answer; None if it declines."""
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
    """Context: questions of this thread are put to an answerer first."""

    def __init__(self, answerer: Answerer) -> None:
        self._entry = modes.AnsweringContext(0, answerer)

    def change(self) -> Answers:
        depth = len(modes.thread.modes)  # a mode may have been entered since this was made
        self._entry = self._entry._replace(depth=depth)
        modes.thread.answering.append(self._entry)
        answers: Answers = self._entry.answerer.answers
        return answers

    def restore(self) -> None:
        if self._entry in modes.thread.answering:
            modes.thread.answering.remove(self._entry)


def value_of(fake: Any, asked_by: str) -> torch.Tensor | None:
    """The values of `fake`, as somebody answers; None if nobody does."""
    return _ask(fake, asked_by, None, checked_value)  # type: ignore[no-any-return]


def truth_of(fake: Any, asked_by: str) -> bool | None:
    """Whether what `asked_by` asks of `fake` is so; None if nobody answers."""
    answer = _ask(fake, asked_by, ((), torch.bool), checked_value)
    return None if answer is None else bool(answer)


def count_of(fake: Any, asked_by: str, lowest: int, highest: int | None) -> int | None:
    """How many rows `asked_by` finds in `fake`, as somebody answers; None if nobody does."""
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
    """Note in the innermost mode what was answered without asking anybody. What an initialiser asks
    whose call is recorded is answered anew when it is replayed.
    """
    answerers = modes.answerers()
    if answerers and not modes.is_in_recorded_initialiser():
        answerers[0].answers.add(_question(fake, asked_by, None, None), answer, answered_by)


def _question(fake: Any, asked_by: str, asked: Any, bounds: Any) -> Question:
    meta, storage = fake._fake_meta, fake._fake_storage
    location = source_location.caller_location(2)
    asked_at = "" if location is None else str(source_location.SourceLocation(*location))
    made_at = "" if storage.source_location is None else str(storage.source_location)
    shape, dtype = (meta.size, meta.dtype) if asked is None else asked
    largest = storage.value.number if type(storage.value) is UpperBound else None
    lowest, highest = (0, largest) if bounds is None else bounds
    return Question(
        kind="value" if bounds is None else "count",
        asked_by=asked_by,
        asked_at=asked_at,
        tensor=fake,
        shape=tuple(shape),
        dtype=dtype,
        device=meta.device,
        operator="" if storage.op is None else str(storage.op),
        made_at=made_at,
        lowest=lowest,
        highest=highest,
    )
