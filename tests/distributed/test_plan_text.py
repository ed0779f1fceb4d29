"""How a plan is shown: its tables."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from torchfake.distributed import Plan, plan
from torchfake.inspect import report


def shard(module, mesh):
    fully_shard(module, mesh=mesh)


def planned(parallelize: Any = shard, **options: str) -> Plan:
    return plan(
        lambda: torch.nn.Linear(64, 64),
        mesh_shape=4,
        mesh_dim_names=("dp",),
        parallelize=parallelize,
        inputs=lambda: torch.empty(1, 64),
        **options,
    )


@pytest.mark.parametrize("where", [{"gpu": "h100-80gb"}, {"device": "cpu"}])
def test_a_plan_has_a_page(where: dict[str, str], tmp_path: Path) -> None:
    found = planned(**where)
    page = report(found, tmp_path / "plan.html").read_text(encoding="utf-8")
    assert f"<h1>{found.class_name}</h1>" in page
    assert ('<p class="verdict yes">Fits: ' in page) == ("gpu" in where)
    first, *_, last = re.findall(r"<h2>(.+?)</h2>", page)
    assert (first, last) == ("Ranks", "Memory at the peak")


def test_ranks_that_look_equal_share_a_row() -> None:
    found = planned()
    (kind,) = found.by_ranks
    three, other = replace(kind, ranks=(0, 1, 2)), replace(kind, ranks=(3,))
    for by_ranks, shown in (
        ((three, other), ["all 4"]),  # they differ by less than is shown
        ((three, replace(other, traffic=())), ["0-2 (dp 0-2)", "3 (dp 3)"]),
    ):
        table = str(replace(found, by_ranks=by_ranks)).partition("\nranks ")[2]
        rows = table.partition("\n\n")[0].splitlines()[1:]
        assert [row.partition("  ")[0] for row in rows] == shown


def test_ranks_that_exchange_no_gradients() -> None:
    alone = "the ranks send nothing, so each trains a model of its own"
    found = planned(parallelize=None)
    assert found.notes == (f"{alone}: no parallelize= was given",)
    assert alone in str(found)
    assert alone in found._repr_html_()
    assert found.to_dict()["notes"] == [*found.notes]
    assert planned(parallelize=lambda module, mesh: module).notes == (alone,)
    assert planned(parallelize=None, mode="inference").notes == planned().notes == ()


def test_products_without_tensor_cores_and_the_peak_of_the_mfu() -> None:
    def text_on(gpu: str) -> str:
        found = plan(
            lambda: torch.nn.Linear(4096, 4096).bfloat16(),
            mesh_shape=1,
            inputs=lambda: torch.empty(8192, 4096, dtype=torch.bfloat16),
            gpu=gpu,
        )
        return str(found)

    old, new = text_on("v100-16gb"), text_on("h100-80gb")
    assert re.search("faster .* products in bf16, without tensor cores; with autocast to fp16", old)
    assert re.search(r"model FLOPs +\d+ % of 15.7 TFLOP/s in bf16, without tensor cores\n", old)
    assert "faster" not in new
    assert re.search(r"model FLOPs +\d+ % of 989.4 TFLOP/s in bf16\n", new)
