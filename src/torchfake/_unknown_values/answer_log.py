"""The list of the answers given.

Input: questions that were answered. Output: :class:`Answers`, a sequence of :class:`Answer`.
Invariant: no tensor is kept alive; a question repeated with an equal answer is one entry with a
count, so a loop does not lengthen the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import torch

from torchfake._unknown_values.question import Question


class Answer(NamedTuple):
    """The answer to a read of an unknown value, given once or several times."""

    kind: str  # "value" or "count"
    asked_by: str  # "item()", "indexing with a mask", an operator
    asked_at: str  # "file:line in function"
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    operator: str  # the operator that made the tensor
    made_at: str
    answer: Any  # the number; the text of the answer if it has several numbers
    answered_by: str  # "finiteness", "torch", "typical", or the name of a function
    times: int = 1

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        made = f" of {self.operator}" if self.operator else ""
        times = "" if self.times == 1 else f", {self.times} times"
        what = "how many: " if self.kind == "count" else ""
        return (
            f"{what}{self.asked_by}, {dtype}{list(self.shape)}{made}: {self.answer} "
            f"({self.answered_by}{times}) at {self.asked_at or 'an unknown line'}"
        )


class Answers(Sequence[Answer]):
    """The answers given in a mode or context, in the order of the first reads."""

    def __init__(self) -> None:
        self._times: dict[Answer, int] = {}

    def add(self, question: Question, answer: Any, answered_by: str) -> None:
        """Record that `question` was answered."""
        short = answer if isinstance(answer, (bool, int, float, complex)) else _text_of(answer)
        asked = question.kind, question.asked_by, question.asked_at
        tensor = question.shape, question.dtype, question.device
        made = question.operator, question.made_at
        key = Answer(*asked, *tensor, *made, short, answered_by)
        self._times[key] = self._times.get(key, 0) + 1

    @overload
    def __getitem__(self, index: int) -> Answer: ...

    @overload
    def __getitem__(self, index: slice) -> list[Answer]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [*self][index]
        key = [*self._times][index]
        return key._replace(times=self._times[key])

    def __len__(self) -> int:
        return len(self._times)

    def __repr__(self) -> str:
        if not self:
            return "no unknown value was read"
        lines = [f"{len(self)} reads of unknown values were answered:"]
        return "\n".join([*lines, *(f"    {answer}" for answer in self)])


_MAX_TEXT = 60


def _text_of(answer: Any) -> str:
    text = " ".join(str(answer).split())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
