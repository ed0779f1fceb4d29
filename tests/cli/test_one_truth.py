"""Every number that a command shows, as text or as HTML, is a number of its JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SMALL
from torchfake.distributed.text import _CATEGORIES
from torchfake.inspect.records.units import (
    bytes_text,
    compared_bytes,
    count_text,
    flops_text,
    seconds_text,
)
from torchfake.inspect.timing.compared import BY_LAUNCHES, COMPARISONS

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

Run = Callable[..., tuple[int, str, str]]

STEP = ("--batch", "4", "--seq", "32", "--train")
COMMANDS = {
    "inspect": ("inspect", *SMALL),
    "inspect a step on a CPU": ("inspect", *SMALL, *STEP),
    "inspect a step on GPUs": ("inspect", *SMALL, *STEP, "--gpu", "h100-80gb,t4-16gb"),
    "inspect quantized": ("inspect", *SMALL, "--weights", "nf4"),
    "fit": ("fit", *SMALL, *STEP, "--accumulate", "3", "--gpu", "t4-16gb,h100-80gb"),
    "fit of pictures": (
        *("fit", "transformers:ViTForImageClassification", "-c", "num_hidden_layers=2"),
        *("--batch", "4", "--train", "--gpu", "h100-80gb,t4-16gb"),
    ),
    "fit that serves": ("fit", *SMALL, "--serve", "64,users=3", "--gpu", "t4-16gb"),
    "fit of weights": ("fit", *SMALL, "--weights", "int8", "--gpu", "t4-16gb"),
    "plan": ("plan", *SMALL, "--seq", "32", "--gpus", "4", "--accumulate", "3", "--gpu", "h100"),
    "plan of a pipeline": (
        *("plan", *SMALL, "-c", "num_hidden_layers=4", "--seq", "32", "--mesh", "dp=2,pp=2"),
        *("--gpu", "h100"),
    ),
    "plan --search": (
        *("plan", *SMALL, "--seq", "32", "--gpus", "2", "--batch", "2", "--gpu", "h100"),
        "--search",
    ),
    "diff": ("diff", "transformers:GPT2Model", "transformers:GPT2LMHeadModel"),
    "init": ("init", *SMALL, "--out", "weights"),
}
WITHOUT_HTML = ("fit of weights", "diff", "init")

UNITS = "[kMGTP]?i?B|[kMGTPE]|s|ms|us|%|[kMGTPE]?FLOPs|bytes"
NUMBER = re.compile(
    rf"(?<![\w.,-])\d+(?:,\d{{3}})*(?:\.\d+)?(?:[KMBT]\b| (?:{UNITS})(?!\w))?(?![\w]|[.,]\d)"
)
FIXED = (
    *(each.text for each in COMPARISONS),
    *(f"median error {each.half} %" for each in COMPARISONS),
    BY_LAUNCHES,
    '"n x" rows total n identical blocks; the rows beneath show one of them.',
)
"""Sentences with numbers that describe no run."""


ANSWERS = {
    "torchfake.inspect.inspection": ("inspect_target",),
    "torchfake.distributed": ("plan_target", "search_layouts"),
}
"""The functions whose records commands show, by module."""


@pytest.fixture(autouse=True)
def answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a test, commands with the same arguments show one record, whose answer is found once."""
    for module, names in ANSWERS.items():
        for name in names:
            answer = once(getattr(import_module(module), name))
            monkeypatch.setattr(f"{module}.{name}", answer)


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    found: dict[str, Any] = {}

    def answer(*args: Any, **kwargs: Any) -> Any:
        key = repr((args, kwargs))
        if key not in found:
            found[key] = function(*args, **kwargs)
        return found[key]

    return answer


def numbers_in(text: str) -> set[str]:
    for sentence in FIXED:
        text = text.replace(sentence, "")
    return set(NUMBER.findall(text))


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves([key, each])
    elif isinstance(value, list):
        yield len(value)
        for each in value:
            yield from leaves(each)
    else:
        yield value


def forms(value: Any) -> Iterator[str]:
    """The texts in which a number of JSON may be shown."""
    if isinstance(value, str):
        yield from numbers_in(value)
    elif isinstance(value, float):
        yield from (seconds_text(value), f"{100 * value:.0f} %", f"{value:,.0f}", f"{value:.2f} s")
        yield from (f"{value:,.3g}", *forms(round(value)))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from (f"{value:,}", str(value), count_text(value), flops_text(value))
        yield flops_text(value).removesuffix("FLOPs").strip()
        yield from numbers_in(compared_bytes(value))
        yield from numbers_in(compared_bytes(-value).replace("-", ""))


def derived(said: dict[str, Any]) -> Iterator[str]:
    """The shares and the rest that tables show of numbers of JSON."""
    total = max(said.get("totals", {}).get("num_parameters", 0), 1)
    for value in leaves(said.get("tree", {})):
        if isinstance(value, int):
            yield f"{100 * value / total:.1f}"
    for found in said.get("plan", {}).get("by_ranks", ()):
        held = found["peak"]["by_category"]
        yield bytes_text(sum(size for name, size in held.items() if name not in _CATEGORIES))


def shown_in(said: dict[str, Any]) -> set[str]:
    return {form for leaf in leaves(said) for form in forms(leaf)} | set(derived(said))


def text_of(page: str) -> str:
    """What a page shows, without tooltips, styles and the labels of axes."""
    page = re.sub(r"(?s)<style>.*?</style>|<script>.*?</script>", " ", page)
    while "<svg" in page:
        page = re.sub(r"(?s)<svg(?:(?!<svg).)*?</svg>", " ", page)
    return unescape(re.sub(r"<[^>]*>", " ", page))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_number_is_one_of_json(name: str, run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    command, page = COMMANDS[name], tmp_path / "page.html"
    html = () if name in WITHOUT_HTML else ("--html", str(page))
    _, out, err = run(*command, *html)
    assert err == ""
    _, written, _ = run(*command, *html, "--json")
    said = shown_in(json.loads(written))
    text = re.sub(r"(time|peak memory) +.*| in [\d.]+ s$", "", out) if command[0] != "plan" else out
    assert sorted(numbers_in(text) - said) == []
    if not html:
        return
    if command[0] == "fit":  # the page describes the model too
        _, written, _ = run("inspect", *command[1:], "--json")
        said |= shown_in(json.loads(written))
    shown = re.sub(r"(time|peak memory)\s+[^\n]*", "", text_of(page.read_text()))
    assert sorted(numbers_in(shown) - said) == []


def test_a_page_of_a_plan_agrees_with_its_json(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    command = COMMANDS["plan"]
    run(*command, "--html", str(page))
    _, written, _ = run(*command, "--json")
    said, shown = json.loads(written), page.read_text()
    plan = said["plan"]
    highest = max(plan["by_ranks"], key=lambda found: found["peak_bytes"])
    found = re.findall(r"<div><b>(.*?)</b><span>([^(]*?)(?: \((.*?)\))?</span>", shown)
    cards = {name: f"{value} ({gib})" if gib else value for value, name, gib in found}
    assert cards == {
        "GPUs": "4 x H100 80GB HBM3",
        "tokens/s on each GPU": f"{said['tokens_per_second_per_gpu']:,.0f}",
        "peak of training": compared_bytes(plan["peak_bytes"]),
        "reserved": compared_bytes(plan["peak_reserved_bytes"]),
        "step time": seconds_text(said["step_seconds"]),
    }
    assert f">peak {bytes_text(plan['peak_bytes'])}<" in shown
    legend = set(re.findall(r"<title>([a-z ]+)</title>", shown))
    assert set(highest["peak"]["by_category"]) <= legend


def test_a_plan_says_each_thing_once(run: Run) -> None:
    _, out, _ = run(*COMMANDS["plan"])
    _, written, _ = run(*COMMANDS["plan"], "--json")
    said = json.loads(written)
    plan, times = said["plan"], said["plan"]["time"]
    assert said["step_seconds"] == plan["step_seconds"] == times["seconds"]
    assert said["mfu"] == plan["mfu"]
    assert (said["accumulate"], plan["micro_batches_run"]) == (3, 2)
    (found,) = plan["by_ranks"]
    held = found["peak"]["by_category"]
    assert sum(held.values()) == found["peak_bytes"] == plan["peak_bytes"]
    lines = dict(re.findall(r"(?m)^  (\w[\w ]*?)  +(.*)", out))
    for category, most in {**dict.fromkeys(held, 0), **found["most_bytes"]}.items():
        size = held.get(category, 0)
        if bytes_text(max(most, size)) != bytes_text(size):
            assert lines[category] == f"{bytes_text(size)}, at another moment {bytes_text(most)}"
        elif size:
            assert lines[category] == bytes_text(size)
    table = out.partition("\nranks ")[2].splitlines()
    header, row = (re.split("  +", line.strip()) for line in table[:2])
    sizes = dict(zip(header, row[1:], strict=True))
    assert sizes.pop("peak") == bytes_text(found["peak_bytes"])
    assert sizes.pop("sent") == bytes_text(found["sent_bytes"])
    shown = {category: held[category] for category in _CATEGORIES if category in held}
    rest = found["peak_bytes"] - sum(shown.values())
    assert list(sizes.values()) == [*map(bytes_text, shown.values()), bytes_text(rest)]


def test_the_reserved_memory_on_a_full_gpu_is_that_of_the_verdict(run: Run, tmp_path: Path) -> None:
    """On a GPU with just enough memory, the allocator releases what it had cached."""
    step = (*SMALL, "--batch", "64", "--seq", "64", "--train", "--vary", "none")
    _, written, _ = run("fit", *step, "--gpu", "t4-16gb", "--json")
    (fit,) = json.loads(written)["fits"]
    gpus = tmp_path / "gpus.toml"
    for spare in (0, 2 << 20, 8 << 20):
        total = fit["reserved_bytes"] + fit["peak_reserved_bytes"] - (16 << 20) + spare
        gpus.write_text(f"[small]\ntotal_memory = {total}\nmajor = 7\n")
        page = tmp_path / "page.html"
        command = ("fit", *step, "--profiles", str(gpus), "--html", str(page))
        _, out, _ = run(*command)
        _, written, _ = run(*command, "--json")
        (on_small,) = json.loads(written)["fits"]
        reserved = compared_bytes(on_small["peak_reserved_bytes"])
        assert f": {reserved} reserved of " in out.splitlines()[0]
        assert re.search(rf"(?m)^reserved +{re.escape(reserved)} by the caching allocator", out)
        size, gib = reserved.split(" (")
        assert f"<b>{size}</b><span>reserved ({gib}</span>" in page.read_text()
