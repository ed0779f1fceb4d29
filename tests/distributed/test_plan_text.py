"""How a plan is shown: its tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline
from torch.distributed.fsdp import fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.distributed import sharded_models as models
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


def test_text() -> None:
    with sdpa_kernel(SDPBackend.MATH):  # fused, torch 2.15 keeps a seed on the GPU
        found = plan(
            lambda: models.Model(63, 32, 66),
            mesh_shape=(2, 2),
            parallelize=models.two_dimensional,
            inputs=models.inputs,
            optimizer="sgd",
            gpu="h100-80gb",
            workspace_bytes=2 * 32 * 2**20,  # as torch 2.13 has them
        )
        verdict, _, rest = str(found).partition("\n")
        assert verdict.split()[:2] == ["fits", "yes:"]
        does = "training with sgd in fp32 parameters on the sum of the output"
        assert verdict.endswith(f"; {does}, batch 2 per rank, seq 12")
    if torch.__version__ < "2.13":  # FSDP2 held one reduce-scatter's input more
        rest = rest.replace("53.8 kB", "45.1 kB")
    if torch.__version__ >= "2.15":  # the host takes 20 us less
        rest = rest.replace("7.57 ms", "7.59 ms").replace("6.77 ms", "6.79 ms")
    assert_expected_inline(
        rest,
        """\
plan                    Model, training with sgd on 4 ranks: dp 2 x tp 2
device                  cuda:0, NVIDIA H100 80GB HBM3
highest peak            67.3 MB (64.2 MiB) on rank 0 (dp 0, tp 0), and 1 more
  when                  in the backward pass, layers.2.up, aten.sum.dim_IntList
  workspace             67.1 MB
  activations           84.5 kB, at another moment 105 kB
  parameters            46.1 kB
  unsharded parameters  37.9 kB
  temporaries           26.6 kB, at another moment 36.4 kB
  communication         21.0 kB, at another moment 45.1 kB
  inputs                1.02 kB
  gradients             0 B, at another moment 36.4 kB
reserved                73.4 MB (70.0 MiB)
step time               7.59 ms, including 337 us waiting for communication and 6.79 ms for the host
  error                 bound by launches: 0.67 to 1.5 times that, as the host is fast or slow (docs/time.md)
  model FLOPs           0 % of 989.4 TFLOP/s in bf16

ranks       parameters  activations  unsharded  communication   others     peak    sent
0-1 (dp 0)     46.1 kB      84.5 kB    37.9 kB        21.0 kB  67.1 MB  67.3 MB  151 kB
2-3 (dp 1)     28.7 kB       102 kB    37.9 kB        21.0 kB  67.1 MB  67.3 MB  151 kB

phase     collective      axis  group size  calls  payload     sent
forward   all_gather      dp             2      4  69.3 kB  34.6 kB
forward   all_reduce      tp             2      6  18.4 kB  18.4 kB
backward  all_gather      dp             2      3  52.6 kB  26.3 kB
backward  all_reduce      tp             2     12  36.9 kB  36.9 kB
backward  reduce_scatter  dp             2      4  69.3 kB  34.6 kB""",  # noqa: E501
    )
    assert found.fits
    assert repr(found) == str(found)
    assert "fits" in found._repr_html_()
    said = json.loads(json.dumps(found.to_dict()))
    assert said["mesh"] == {"dp": 2, "tp": 2}
    assert [row["ranks"] for row in said["by_ranks"]] == [[0, 1], [2, 3]]
    assert said["fit"]["fits"] is True


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
    ranks = found.layout.num_ranks
    on_gpus = str(planned(parallelize=None, gpu="h100-80gb")).splitlines()[0]
    assert on_gpus.endswith(f"; {ranks} models of their own: the ranks send nothing")
    assert "models of their own" not in str(planned(gpu="h100-80gb"))
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
    assert re.search(
        "faster .* products in bf16 take .*, without tensor cores; with autocast to fp16", old
    )
    assert re.search(r"model FLOPs +\d+ % of 15.7 TFLOP/s in bf16, without tensor cores\n", old)
    assert "faster" not in new
    assert re.search(r"model FLOPs +\d+ % of 989.4 TFLOP/s in bf16\n", new)
