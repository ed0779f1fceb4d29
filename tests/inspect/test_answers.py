"""Models that ask for values are inspected with ``answer=``, and what was answered is listed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from torchfake import check, estimate, fit, plan, summary
from torchfake.cli.commands import app
from torchfake.errors import UnknownValueError


class Asks(nn.Module):
    """Reads a value, and has a shape that depends on one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        rows: Tensor = out[out.sum(1) > 0]
        return rows * 2 if rows.sum() > 3 else rows


def inputs() -> Tensor:
    return torch.randn(5, 3)


RUNS: dict[str, Callable[..., Any]] = {
    "check": lambda **k: check(Asks(), inputs(), **k),
    "summary": lambda **k: summary(Asks(), inputs(), **k),
    "estimate": lambda **k: estimate(Asks(), inputs(), optimizer="sgd", **k),
    "fit": lambda **k: fit(estimate(Asks(), inputs(), **k), "t4-16gb", vary=None).estimate,
}


@pytest.mark.parametrize("name", RUNS)
def test_what_was_answered_is_in_the_result(name: str) -> None:
    with pytest.raises(UnknownValueError):
        RUNS[name]()
    found = RUNS[name](answer="typical")
    assert [answer.kind for answer in found.answers] == ["count", "value"]
    assert "(typical) at" in str(found)
    assert len(found.to_dict()["answers"]) == 2


def test_a_function_answers() -> None:
    found = check(Asks(), inputs(), answer=lambda q: 2 if q.kind == "count" else True)
    assert found.output.shape == (2, 4)


def test_a_plan_of_ranks() -> None:
    make = partial(torch.empty, 5, 3)  # small draws would be known in its mode
    found = plan(Asks, mesh_shape=2, inputs=make, device="cpu", answer="typical")
    assert found.of_rank(1).estimate.answers


class Refuses(Asks):
    """Refuses what a value says that is not known."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.layer(x).sum() > 0:
            raise ValueError("the sum has to be positive")
        return x


@pytest.mark.parametrize(
    "run",
    [
        lambda **k: check(Refuses(), inputs(), **k),
        lambda **k: plan(
            Refuses, mesh_shape=2, inputs=partial(torch.empty, 5, 3), device="cpu", **k
        ),
    ],
)
def test_an_error_says_which_value_was_assumed_before_it(run: Callable[..., Any]) -> None:
    given = {"typical": "typical", "named": lambda question: False}
    for name, answer in given.items():
        with pytest.raises(ValueError, match="the sum has to be positive") as refused:
            run(answer=answer)
        name = getattr(answer, "__name__", name)
        assumed = "; it may follow from a value that was assumed: item(), bool[] of aten.gt"
        assert assumed in str(refused.value)
        assert f": False ({name}) at " in str(refused.value)


def test_nothing_is_listed_where_nothing_was_asked() -> None:
    found = summary(nn.Linear(3, 4), inputs(), answer="typical")
    assert not found.answers
    assert "answers" not in found.to_dict()


@pytest.mark.parametrize(("answer", "error"), [("none", ValueError), (3, TypeError)])
def test_what_answers_nothing_is_refused(answer: Any, error: type[Exception]) -> None:
    for run in (check, summary, estimate):
        with pytest.raises(error, match="typical"):
            run(Asks(), inputs(), answer=answer)


def test_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "asks.py"
    file.write_text(
        "import transformers as t\n"
        "class Asks(t.LlamaForCausalLM):\n"
        "    def forward(self, input_ids=None, **kwargs):\n"
        "        out = super().forward(input_ids, **kwargs)\n"
        "        if out.logits.sum() > 0: out.logits = out.logits * 2\n"
        "        return out\n"
        "def make():\n"
        "    sizes = dict(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1)\n"
        "    return Asks(t.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))\n"
    )
    target = f"{file}:make"
    failed = CliRunner().invoke(app, ["inspect", target, "--batch", "1"])
    assert failed.exit_code == 2
    assert "--answer typical" in failed.output
    found = CliRunner().invoke(app, ["inspect", target, "--batch", "1", "--answer", "typical"])
    assert found.exit_code == 0
    assert "(typical) at" in found.output
    assert CliRunner().invoke(app, ["inspect", target, "--answer", "none"]).exit_code == 2
