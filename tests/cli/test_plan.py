"""``torchfake plan``."""

# ruff: noqa: E501 - messages to the letter

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

Run = Callable[..., tuple[int, str, str]]
SIZES = ("--seq", "32", "--gpu", "h100-80gb")


def test_the_first_line_answers(run: Run) -> None:
    options = ("--gpus", "8", "--mesh", "tp=2", "--batch", "16", "--checkpoint", "full")
    code, out, err = run("plan", *SMALL, *SIZES, *options, "--code")
    assert (code, err) == (0, "")
    lines = dict(line.split("  ", 1) for line in out.splitlines()[:8])
    assert lines["fits"].strip().startswith("yes: ")
    assert "waiting for" in lines["step time"]
    assert "tokens/s on each GPU, MFU" in lines["throughput"]
    assert lines["batch"].strip() == "16 of 32 tokens: 4 on each of 4 data ranks"
    assert lines["layout"].strip() == "FSDP2 along dp 4, tensor parallel along tp 2"
    assert out.endswith(
        'mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))\n'
        "model = parallelize(model, mesh)\n"
    )


def test_it_says_no_and_what_would_need_less(run: Run, tmp_path: Path) -> None:
    gpus = tmp_path / "gpus.toml"
    gpus.write_text('[small]\ntotal_memory = "1.07 GiB"\n')
    options = ("--gpus", "2", "--batch", "1024", "--seq", "32", "--profiles", str(gpus))
    code, out, _ = run("plan", *SMALL, *options)
    assert code == 1
    first, second = out.splitlines()[:2]
    assert first.startswith("fits ")
    assert " no: " in first
    said = r"--micro-batch 1, which may fit: ([\d.]+ MB to spare, less than the error of 5 %)"
    tight = re.fullmatch(said, second.split(maxsplit=1)[1])
    assert tight is not None
    _, again, _ = run("plan", *SMALL, *options, "--micro-batch", "1")
    assert re.match(r"fits +tight: ", again)
    assert f" {tight[1]}" in re.sub(r" \([^)]*\)", "", again)


def test_json_and_html(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    options = ("--mesh", "replicate=2,shard=2", "--accumulate", "3", "--html", str(page), "--json")
    code, out, _ = run("plan", *SMALL, *SIZES, *options)
    found = json.loads(out)
    assert (code, found["fits"], found["batch"], found["accumulate"]) == (0, True, 12, 3)
    assert found["plan"]["mesh"] == {"replicate": 2, "shard": 2}
    assert found["step_seconds"] > 0
    assert "2 of 3 micro-batches" in found["notes"][0]
    assert "FSDP" not in found["code"].partition("def parallelize")[2]
    shown = page.read_text()
    assert "HSDP along replicate 2 x shard 2" in shown
    headings = re.findall("<h2>(.*?)</h2>", shown)
    assert headings[:3] == ["Ranks", "Computation and communication over time", "Plan"]
    assert headings[-1] == "Code of this layout"
    assert "<b>3</b>replicate 1\nshard 1</td>" in shown


OWN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))

    def forward(self, x):
        return self.layers(x).sum()


def rows(batch):
    return torch.empty(batch, 8)
"""


def test_a_module_of_ones_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    target, inputs = (f"{tmp_path}/own.py:{name}" for name in ("Net", "rows"))
    options = ("--gpus", "2", "--batch", "8", "--checkpoint", "full", "--gpu", "h100-80gb")
    code, _, err = run("plan", target, *options)
    assert code == 2
    assert err.endswith("; or --inputs file.py:function, which makes them\n")
    code, out, err = run("plan", target, *options, "--inputs", inputs)
    assert (code, err) == (0, "")
    assert re.search(r"throughput +[\d,.]+ samples/s on all GPUs", out)  # not 1.29e+05
    assert "inputs" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--mesh dp=8,tp=4 --gpus 64", "--mesh dp=8,tp=4 has 32 ranks, and --gpus is 64: tp=4 leaves dp=16"),
        ("--mesh tp=3 --gpus 64", "--mesh tp=3 has 3 ranks, and --gpus is 64, no multiple of 3: sizes multiply; give another --gpus or --mesh"),
        ("--mesh dp:8", "--mesh 'dp:8' is not of the form dp=8,tp=8"),
        ("--mesh dq=8", "the mesh has an axis 'dq': dp shards (FSDP2), replicate copies (HSDP, DDP), tp splits tensors, cp sequences, ep experts, pp layers into stages"),
        ("--mesh pp=8 --accumulate 4", "Schedule1F1B on 8 ranks takes 8 micro-batches or more, not 4: give microbatches=8 (--accumulate 8), or the schedule gpipe"),
        ("--gpus 64 --batch 500", "a batch of 500 does not divide among 64 data ranks: give 448 or 512"),
        ("--gpus 64 --batch 512 --micro-batch 3", "a batch of 512 does not divide into micro-batches of 3 on 64 ranks: give 384 or 576"),
        ("--mesh tp=4", "tp=4 does not divide the 2 key-value heads of LlamaForCausalLM: give a divisor, 1, 2"),
        ("--gpus 4 --checkpoint fill", "checkpoint is 'fill'; did you mean full?"),
        ("--gpus 4 --zero 1", "--zero 1 is not supported by fsdp2: give 3 or 2, or --engine ddp"),
        ("--gpus 1 --offload", "offload needs FSDP2: give the mesh an axis that shards, dp=2 or more"),
        ("", "give the number of GPUs, --gpus 64, or a mesh, --mesh dp=8,tp=8"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_the_remedy(run: Run, options: str, message: str) -> None:
    code, out, err = run("plan", *SMALL, *options.split())
    assert (code, out, err) == (2, "", f"error: {message}\n")


def test_a_search(run: Run) -> None:
    options = ("--gpus", "2", "--batch", "2", "--seq", "32", "--gpu", "h100-80gb", "--search")
    code, out, err = run("plan", *SMALL, *options)
    assert (code, err) == (0, "")
    assert out.startswith("fastest  2 GPUs, ")
    counted = "training with adamw in mixed precision, global batch 2, seq 32"
    assert out.splitlines()[0].endswith(f", on NVIDIA H100 80GB HBM3; {counted}")
    assert "parallelize" not in out
    code, shown, _ = run("plan", *SMALL, *options, "--code")
    assert code == 0
    assert shown.startswith(out.splitlines()[0])
    assert shown.endswith("model = parallelize(model, mesh)\n")
    code, _, err = run("plan", *SMALL, "--gpus", "2", "--search")
    assert code == 2
    assert err == "error: --search needs --gpus and --batch, for which it tries layouts\n"
    code, _, err = run("plan", *SMALL, *options, "--mesh", "dp=2", "--offload")
    assert code == 2
    assert err == "error: --search chooses the layout: leave out --mesh, --offload\n"


def test_a_remedy_was_planned(run: Run) -> None:
    wide = ("transformers:LlamaForCausalLM", "-c", "num_hidden_layers=4", "--gpu", "rtx4090")
    code, out, _ = run("plan", *wide, "--gpus", "2", "--batch", "16", "--seq", "2048")
    assert code == 1
    (options,) = re.findall(r"(?m)^  try +(.*), which fits$", out)
    again = ("plan", *wide, "--gpus", "2", "--batch", "16", "--seq", "2048", *options.split())
    assert run(*again)[0] == 0
    _, out, _ = run("plan", *wide, "--gpus", "1", "--seq", "64", "--checkpoint", "full")
    assert "\n  try" not in out  # the states alone do not fit


def test_checkpointing_on_one_gpu_is_suggested_where_it_fits(run: Run) -> None:
    wide = ("transformers:LlamaForCausalLM", "-c", "num_hidden_layers=5", "-c", "vocab_size=1000")
    step = ("--dtype", "bf16", "--train", "--seq", "2048", "--batch", "8", "--gpu", "a10-24gb")
    code, out, _ = run("fit", *wide, *step)
    assert code == 1
    first = re.findall(r"(?m)^next +torchfake (.*)$", out)[0]
    assert "--gpus 1 " in first
    assert "--checkpoint full" in first
    assert run(*first.split())[0] == 0
