"""Operators whose FLOPs are not known are named: in text, HTML and JSON, of each record."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import estimate, fake_mode
from torchfake.distributed import plan
from torchfake.inspect import summary
from torchfake.inspect.arithmetic.uncounted import (
    Uncounted,
    most_of_any,
    uncounted_line,
    uncounted_of,
)

GPU = "h100-80gb"
QR = "aten.linalg_qr (2 calls, 98.3 kB)"


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return torch.linalg.qr(x)[0] + torch.linalg.qr(x)[1]


@pytest.fixture
def given() -> tuple[nn.Module, torch.Tensor]:
    with fake_mode():
        return Factors(), torch.empty(64, 64)


def shown(record: Any) -> list[str]:
    """The text of a record, and of its HTML, with one space for each gap."""
    texts = [
        str(record),
        html.unescape(re.sub(r"<[^>]+>", " ", record._repr_html_().replace("<wbr>", ""))),
    ]
    return [" ".join(text.split()) for text in texts]


def test_summary_and_estimate_name_them(given: Any) -> None:
    with torch.no_grad():
        records = [summary(*given), estimate(*given, gpu=GPU)]
    for record in records:
        (row,) = [row for row in record.uncounted if row.operator == "aten.linalg_qr"]
        assert row == ("aten.linalg_qr", 2, 2 * 3 * 64 * 64 * 4)
        for text in shown(record):
            assert f"no FLOPs known for: {row}" in text
        listed = json.loads(json.dumps(record.to_dict()))["no_flops_known_for"]
        assert row._asdict() in listed
    assert str(row) == QR
    schedule = records[1].schedule
    assert schedule.to_dict()["no_flops_known_for"] == [row._asdict()]
    assert schedule.seconds_by_kind["operators whose FLOPs are not known"] > 2 * 2e-6


def test_plan_names_them(given: Any) -> None:
    _, x = given
    found = plan(Factors, mesh_shape=2, inputs=x, mode="inference", gpu=GPU)
    assert [row.operator for row in found.uncounted] == ["aten.linalg_qr"]
    for text in shown(found):
        assert f"no FLOPs known for: {QR}" in text
    assert found.to_dict()["no_flops_known_for"] == [found.uncounted[0]._asdict()]


def test_where_all_are_known_nothing_is_said() -> None:
    with fake_mode():
        module, x = nn.Linear(4, 4), torch.empty(2, 4)
    for record in (summary(module, x), estimate(module, x, gpu=GPU)):
        assert record.uncounted == ()
        assert "not counted" not in str(record)
        assert "no_flops_known_for" not in record.to_dict()


def test_operators_that_write_nothing_are_not_named() -> None:
    class Checks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._assert_async(torch.ones((), device=x.device))
            return x + 1

    with fake_mode():
        x = torch.empty(4)
    assert summary(Checks(), x).uncounted == estimate(Checks(), x, gpu=GPU).uncounted == ()


def test_calls_are_added_up_by_operator() -> None:
    found = uncounted_of([("aten::a", 1), ("aten::b", 5), ("aten::a", 2)])
    assert found == (Uncounted("aten.b", 1, 5), Uncounted("aten.a", 2, 3))
    other = uncounted_of([("aten::a", 9)])
    assert most_of_any([found, other]) == (Uncounted("aten.a", 1, 9), Uncounted("aten.b", 1, 5))


def test_of_many_operators_the_largest_are_named() -> None:
    found = uncounted_of([(f"aten::op{i}", i) for i in range(1, 10)])
    name, text = uncounted_line(found)
    assert name == "not counted"
    assert text.startswith("no FLOPs known for: aten.op9 (1 call, 9 B), aten.op8 (1 call, 8 B)")
    assert text.endswith("aten.op4 (1 call, 4 B), 3 more operators")
    assert uncounted_line(()) == ("not counted", "")
