"""A question about unknown values, and the check of its answer.

Input: a fake, and a question about its values. Output: a :class:`Question`; the answer as a real
tensor or a number. Invariant: an answer that does not fit its question is an error that names both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchfake._core.memory import view_of
from torchfake.errors import AnswerError

Number = bool | int | float | complex


@dataclass(frozen=True, slots=True)
class Question:
    """A read of an unknown value, which an answer function is asked to supply."""

    kind: str  # "value": all values of a tensor; "count": the length of a result
    asked_by: str  # "item()", "tolist()", "indexing with a mask", an operator
    asked_at: str  # "file:line in function", in code that is neither torch's nor torchfake's
    tensor: Any  # the fake
    shape: tuple[int, ...]  # of the values asked for; if a count is asked for, of the tensor
    dtype: torch.dtype  # of the values asked for; if a count is asked for, of the tensor
    device: torch.device
    operator: str  # the operator that made the tensor, "aten.eq.Scalar"; "" if none did
    made_at: str  # the source line of that operator, as in `asked_at`; "" if unknown
    lowest: int = 0  # the lower bound of a count
    highest: int | None = None  # the upper bound of a count or of all values; None if unknown

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        asked = f"{self.asked_by} of {dtype}{list(self.shape)} on {self.device}"
        made = f", made by {self.operator}" if self.operator else ""
        made += f" at {self.made_at}" if self.made_at else ""
        what = "how many rows are in the result of " if self.kind == "count" else ""
        return f"{what}{asked}{made}, asked at {self.asked_at or 'an unknown line'}"


def checked_count(question: Question, answer: Any) -> int:
    """Return `answer` if it is a count between the question's bounds.

    Raises:
        AnswerError: if the answer is no int, or out of bounds.
    """
    if isinstance(answer, bool) or not isinstance(answer, int):
        raise _error(question, answer, "a count is an int")
    highest = question.highest
    if answer < question.lowest or (highest is not None and answer > highest):
        bounds = f"at least {question.lowest}" if highest is None else ""
        raise _error(question, answer, bounds or f"{question.lowest} to {highest} is possible")
    return answer


def checked_value(question: Question, answer: Any) -> torch.Tensor:
    """Return `answer` as a real tensor of the question's shape and dtype.

    Raises:
        AnswerError: if the answer has another shape, or cannot be cast to the dtype.
    """
    if isinstance(answer, Number):
        _check_number(question, answer)
        make = torch.full
        given = (question.shape, answer)
        try:
            return make(*given, dtype=question.dtype, device="cpu")
        except (RuntimeError, OverflowError) as error:
            raise _error(question, answer, str(error)) from error
    tensor = _as_tensor(question, answer)
    if tuple(tensor.shape) != question.shape:
        raise _error(question, answer, f"the shape is {list(question.shape)}, or one number")
    if not torch.can_cast(tensor.dtype, question.dtype):
        raise _error(question, answer, f"{tensor.dtype} cannot become {question.dtype}")
    return tensor.to(question.dtype)


def _check_number(question: Question, answer: Any) -> None:
    dtype = question.dtype
    if dtype == torch.bool and not isinstance(answer, bool):
        raise _error(question, answer, "the answer is True or False")
    if dtype != torch.bool and isinstance(answer, bool):
        raise _error(question, answer, "the answer is a number, not a bool")
    is_real = not isinstance(answer, complex)
    is_integer = isinstance(answer, int)
    if not (dtype.is_complex or (is_real and dtype.is_floating_point) or is_integer):
        raise _error(question, answer, f"it is not a number of dtype {dtype}")


def _as_tensor(question: Question, answer: Any) -> torch.Tensor:
    """Convert a tensor, array or list to a real tensor. In a mode, the answer may be a fake."""
    storage = getattr(answer, "_fake_storage", None)
    if storage is not None:
        if not storage.is_known:
            raise _error(question, answer, "it is a fake whose own value is not known")
        return view_of(storage.known_bytes(), answer._fake_meta)
    try:
        tensor = torch.as_tensor(answer, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise _error(question, answer, "it is not a number, tensor, array or list") from error
    return _as_tensor(question, tensor) if hasattr(tensor, "_fake_storage") else tensor


def _error(question: Question, answer: Any, reason: str) -> AnswerError:
    return AnswerError(f"{answer!r} is no answer to {question}: {reason}")
