"""The answers named "typical": the values of a healthy run that does not end early.

Input: a question. Output: its answer, or None. Invariant: the answer follows from the question
alone, so that a repeated question gets an equal answer.
"""

from __future__ import annotations

import math

import torch

from torchfake._core.storage import AssumedFill
from torchfake._unknown_values.question import Number, Question

MAX_BYTES = 256 * 1024 * 1024
"""The largest answer that is given: an answer takes real memory."""

MAX_TIMES = 10_000
"""The most answers to one line: a loop that asks more often waits for a value that never comes."""

_POSITIONS = ("argmax", "argmin", "argsort", "sort", "topk", "max.dim", "min.dim", "multinomial")
"""Parts of the names of operators that return indices, answered by 0, which is always valid."""

_CHECKS = (
    "aten.all.", "aten.allclose", "aten._is_all_true", "aten.bitwise_and.", "aten.logical_and.",
)  # fmt: skip
"""Operators answered by True: checks of all elements, and ``&``, which combines the conditions
under which a beam search goes on."""


class Typical:
    """Answers as a healthy run would: checks pass, loops go on, selections keep everything.

    The count of a selection is its maximum; other numbers are 1, indices 0. ``all()`` and ``&`` are
    true, other booleans false. ``unique`` of integers finds two values.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], int] = {}

    def __call__(self, question: Question) -> Number | None:
        line = question.asked_at, question.operator
        self._times[line] = self._times.get(line, 0) + 1
        if self._times[line] > MAX_TIMES:
            return None
        if question.kind == "count":
            return _typical_count(question)
        return _typical_number(question)


def _typical_number(question: Question) -> Number | None:
    dtype = question.dtype
    if math.prod(question.shape) * dtype.itemsize > MAX_BYTES:
        return None
    if dtype == torch.bool:
        return question.asked_by.startswith(_CHECKS) or question.operator.startswith(_CHECKS)
    if dtype.is_floating_point or dtype.is_complex:
        return 1.0
    if question.highest is not None:
        return question.highest
    return 0 if any(name in question.operator for name in _POSITIONS) else 1


def _typical_count(question: Question) -> int | None:
    if question.highest is None:
        repeats = math.prod(question.shape) if "repeat" in question.asked_by else 0
        return max(question.lowest, repeats)
    value = question.tensor._fake_storage.value
    if type(value) is AssumedFill:
        return question.highest if value.number else question.lowest
    is_set = "unique" in question.asked_by and not question.dtype.is_floating_point
    return min(question.highest, max(question.lowest, 2)) if is_set else question.highest
