"""``torchfake serve``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

Run = Callable[..., tuple[int, str, str]]
LOAD = ("--users", "4", "--context", "64", "--gpu", "h100-80gb")


def test_the_first_line_answers(run: Run) -> None:
    code, out, err = run("serve", *SMALL, *LOAD)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("fits           yes: 4 users x 64 tokens on 1 NVIDIA H100 80GB HBM3")
    names = [line.split("  ")[0] for line in lines]
    assert {"first token", "each token", "throughput", "memory", "left out"} <= {*names}
    assert "bound by" in out


def test_it_says_no_and_with_what_it_would_fit(run: Run) -> None:
    code, out, _ = run("serve", *SMALL, *LOAD, "--users", "1500")
    assert code == 1
    first, second = out.splitlines()[:2]
    assert " no: " in first
    assert second.strip().startswith("try ")
    assert "with room for" in second


def test_json_and_html(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "served.html"
    code, out, _ = run("serve", *SMALL, *LOAD, "--html", str(page), "--json")
    found = json.loads(out)
    assert found["serve"]["users"] == found["users"]
    assert (code, found["fits"], found["users"]) == (0, True, 4)
    assert "first token" in page.read_text()


def test_a_search_names_the_fewest_and_the_cheapest(run: Run) -> None:
    options = ("--search", "--gpus", "2", "--price", "h100=2.5", "--ttft", "0.5", "--tpot", "0.05")
    code, out, _ = run("serve", *SMALL, *LOAD, *options, "--weights", "bf16,fp8")
    assert code == 0
    assert out.startswith("cheapest ")
    assert "by the hour" in out
    assert "the first token within 500 ms, each token within 50 ms" in out


def test_a_search_asks_for_two_of_these_or_four_of_those(run: Run) -> None:
    given = (*SMALL, "--users", "4", "--context", "64", "--search")
    code, out, _ = run("serve", *given, "--gpu", "h100-80gb:1,l40s-48gb:2", "--json")
    assert code == 0
    assert json.loads(out)["num_tried"] == 1 + 3
    assert run("serve", *SMALL, *LOAD[:-1], "h100-80gb:2") == run(
        "serve", *SMALL, *LOAD, "--gpus", "2"
    )


def test_a_search_that_finds_nothing_says_what_is_nearest(run: Run) -> None:
    code, out, _ = run("serve", *SMALL, *LOAD, "--search", "--gpus", "1", "--tpot", "1e-9")
    assert code == 1
    assert out.splitlines()[0].startswith("fits ")
    assert "nearest" in out


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--ttft", "1"), "give --search too"),
        (("--gpu", "h100-80gb:x"), "--gpu 'h100-80gb:x' is not NAME:NUMBER"),
        (("--gpus", "2", "--gpu", "h100-80gb:4"), "--gpus is 2, and --gpu has 4: give one"),
        (("--gpu", "h100-80gb,a100-80gb"), "--gpu names 2"),
        (("--weights", "fp8,awq"), "--weights names 2"),
        (("--cache-dtype", "bf16,fp8"), "--cache-dtype names 2"),
        (("--search", "--mesh", "tp=2"), "leave out --mesh"),
        (("--search", "--price", "h100"), "--price 'h100' is not GPU=PRICE"),
        (("--prompt", "64"), "leaves no room for an answer"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Run, options: tuple[str, ...], text: str) -> None:
    code, out, err = run("serve", *SMALL, "--users", "4", "--context", "64", *options)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1


def test_plan_serves_too(run: Run) -> None:
    code, out, _ = run("serve", *SMALL, *LOAD, "--prompt", "8")
    options = ("--gpu", "h100-80gb", "--serve", "64,users=4,prompt=8")
    assert run("plan", *SMALL, *options) == (code, out, "")
