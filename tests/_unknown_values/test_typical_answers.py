"""The answers that have the name "typical"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import unknown
from torchfake import answering, fake_mode
from torchfake._unknown_values import typical_answers
from torchfake.errors import UnknownValueError

ANSWERS: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "float": (lambda t: t.sum().item(), 1.0),
    "comparison": (lambda t: bool(t.sum() > 0), False),
    "equality": (lambda t: torch.equal(t, t + 1), False),
    "check": (lambda t: bool((t > 0).all()), True),
    "conditions": (lambda t: bool((t.sum() > 0) & (t.max() < 1)), True),
    "closeness": (lambda t: torch.allclose(t, t), True),
    "any": (lambda t: bool((t > 0).any()), False),
    "position": (lambda t: t.argmax().item(), 0),
    "positions": (lambda t: t.sort().indices.tolist(), [0] * 6),
    "integer": (lambda t: t.long().max().item(), 1),
    "selected": (lambda t: len(t[t > 0]), 6),
    "counted": (lambda t: (t > 0).sum().item(), 6),
    "counted in rows": (lambda t: (t.view(2, 3) > 0).long().sum(1).max().item(), 3),
    "counted and more": (lambda t: (2 + (t > 0).sum()).item(), 8),
    "counted and added to": (lambda t: (t > 0).sum().add_(2).item(), 8),
    "different": (lambda t: len(t.unique()), 6),
    "different integers": (lambda t: len(t.long().unique()), 2),
    "counts": (lambda t: len(t.long().bincount(minlength=4)), 4),
    "repeated": (lambda t: len(torch.arange(6).repeat_interleave(t.long())), 6),
    "what is not finite": (lambda t: len(t[t.isnan()]), 0),
    "what is finite": (lambda t: len(t[t.isfinite()]), 6),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_typical_answers(name: str) -> None:
    program, expected = ANSWERS[name]
    with fake_mode(answer="typical") as mode:
        assert program(unknown(6)) == expected
    assert len(mode.answers) >= 1


def test_a_loop_that_waits_for_a_value_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typical_answers, "MAX_TIMES", 50)

    def wait() -> None:
        while not bool(unknown(3).sum() > 0):
            pass

    with answering("typical") as answers, pytest.raises(UnknownValueError):
        wait()
    assert answers[0].times == 50


def test_large_tensors_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typical_answers, "MAX_BYTES", 100)
    with answering("typical"):
        assert len(unknown(25).tolist()) == 25
        with pytest.raises(UnknownValueError):
            unknown(26).tolist()
