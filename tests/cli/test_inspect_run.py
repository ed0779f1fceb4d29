"""``torchfake inspect`` where the model is run: batch, training, generation, a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, small
from torchfake import estimate, example_inputs

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import


Run = Callable[..., tuple[int, str, str]]


def test_inspect_on_a_batch(run: Run) -> None:
    code, out, err = run("inspect", *SMALL, "--batch", "2", "--seq", "8", "--depth", "1")
    assert (code, err) == (0, "")
    assert "FLOPs forward" in out
    assert "[2, 8, 100]" in out
    assert "step           inference in fp32 on cpu" in out


def test_inspect_says_what_estimate_says(run: Run) -> None:
    options = ("--batch", "2", "--seq", "8", "--optimizer", "adamw", "--autocast", "bf16")
    code, out, err = run("inspect", *SMALL, *options, "--gpu", "a100-40gb", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    model = small()
    found = estimate(
        model,
        example_inputs(model, batch=2, seq=8, labels=True),
        optimizer="adamw",
        autocast="bf16",
        gpu="a100-40gb",
    )
    assert said["estimate"] == json.loads(json.dumps(found.to_dict()))
    assert said["flops"][""]["backward"] > 0
    (fitted,) = said["fits"]
    assert fitted["gpu"] == "a100-40gb"
    assert fitted["peak_bytes"] == found.peak_bytes
    assert fitted["fits"] is True


def test_train_without_an_optimizer(run: Run) -> None:
    code, out, _ = run("inspect", *SMALL, "--train", "--optimizer", "none", "--json")
    said = json.loads(out)["estimate"]
    assert code == 0
    assert (said["mode"], said["optimizer"]) == ("training", None)
    assert "optimizer state" not in said["peak"]["by_category"]


def test_decode(run: Run) -> None:
    code, out, _ = run("inspect", *SMALL, "--decode", "16,8", "--json")
    assert code == 0
    assert json.loads(out)["estimate"]["peak"]["by_category"]["kv cache"] > 0


def test_html(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    code, _, err = run("inspect", *SMALL, "--batch", "2", "--train", "--html", str(path))
    assert (code, err) == (0, "")
    assert "<h2>Memory over time</h2>" in path.read_text(encoding="utf-8")
    code, _, err = run("inspect", *SMALL, "--html", str(tmp_path / "none" / "out.html"))
    assert code == 2
    assert "No such file" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("inspect", "torch.nn:Flatten", "--batch", "2"),
            "inputs can be generated for models of transformers",
        ),
        (("inspect", *SMALL, "--optimizer", "adamz"), "torch.optim has no 'adamz'"),
        (("inspect", *SMALL, "--autocast", "bf17"), "there is no dtype 'bf17'"),
        (("inspect", *SMALL, "--decode", "3"), "is not PROMPT,NEW"),
        (
            ("inspect", *SMALL, "--decode", "3,4", "--train"),
            "--decode is inference: leave out --optimizer and --train",
        ),
        (("fit", *SMALL, "--gpu", "h1000"), "did you mean h100-80gb?"),
        (
            ("fit", *SMALL, "--vary", "depth"),
            "--vary depth is not known: give --vary batch, --vary seq or --vary none",
        ),
        (("fit", *SMALL, "--profiles", "none.toml"), "none.toml could not be read"),
        (
            ("inspect", "transformers:GPT2LMHeadModel", "-c", "n_layer=1", "--seq", "1025"),
            "GPT2LMHeadModel has learned 1,024 positions, and does not run on 1,025 tokens",
        ),
        (
            ("fit", "transformers:ViTModel", "-c", "num_hidden_layers=1", "--seq", "512"),
            "ViTModel takes no sequence, so no input has --seq 512: leave it out; the sizes of its",
        ),
    ],
)
def test_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


def test_without_plotly(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    code, _, err = run("inspect", *SMALL, "--html", str(tmp_path / "out.html"))
    assert (code, err) == (0, "")
    assert "<svg" in (tmp_path / "out.html").read_text()
