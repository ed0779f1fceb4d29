"""The page: whole, offline, small, and what it shows is there once scripts have run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.inspect.small_models import model_and_inputs
from torchfake import fake_mode
from torchfake._core.gpu_profiles import profiles
from torchfake.errors import InputsError
from torchfake.inspect import estimate, fit, summary
from torchfake.inspect.figures.page import _sentences
from torchfake.inspect.figures.plotly_figures import flops_figure, peak_figure
from torchfake.inspect.figures.report import report
from torchfake.inspect.records.record import OnPage
from torchfake.inspect.show.rows import as_lines

MAX_BYTES = 1_000_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, inputs = model_and_inputs("llama")
    found = estimate(model, inputs, optimizer="adamw", gpu="h100-80gb")
    path = tmp_path_factory.mktemp("page") / "out.html"
    fits = fit(found, "h100-80gb", "t4-16gb", vary=None)
    assert report(summary(model, inputs), fits, path) == path
    return path


def test_it_asks_nothing_of_the_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < MAX_BYTES
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttp", text)


def test_it_has_all_sections(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        *("Memory, and where it fits", "Memory over time", "Memory at the peak"),
        *("Parameters", "Operations, forward and backward", "Modules"),
    ]
    assert "3 x LlamaDecoderLayer" in text
    assert "t4-16gb" in text


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="needs a headless Chromium")
def test_it_draws_itself_in_a_browser(page: Path) -> None:
    assert CHROMIUM is not None
    shown = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--virtual-time-budget=10000", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert shown.count(">Expand all</button>") == 1  # the script has run
    assert shown.count("<svg xmlns") == 4
    assert re.search(r"peak \d", shown)


def test_a_module_and_its_inputs(tmp_path: Path) -> None:
    path = report(nn.Linear(3, 4), torch.ones(2, 3), tmp_path / "a.html", optimizer="sgd")
    assert "training with sgd in fp32 on the sum of the output on cpu" in path.read_text(
        encoding="utf-8"
    )
    path = report(nn.Linear(3, 4), tmp_path / "b.html")
    assert "<h2>Modules</h2>" in path.read_text(encoding="utf-8")


def test_wrong_options(tmp_path: Path) -> None:
    with pytest.raises(InputsError, match="the last argument is the path"):
        report(nn.Linear(3, 4), torch.ones(2, 3))
    with pytest.raises(InputsError, match="a int cannot be reported"):
        report(3, tmp_path / "a.html")
    with pytest.raises(InputsError, match="optimizer=: options are for a module"):
        report(summary(nn.Linear(3, 4)), tmp_path / "a.html", optimizer="sgd")
    with pytest.raises(OSError, match="No such file"):
        report(summary(nn.Linear(3, 4)), tmp_path / "none" / "a.html")
    with pytest.raises(InputsError, match="optimizer: give the module's inputs too"):
        report(nn.Linear(3, 4), tmp_path / "a.html", optimizer="sgd")
    assert not list(tmp_path.iterdir())


def test_what_was_there_stays_if_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.html"
    path.write_text("before")

    def fails(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no space left"):
        report(summary(nn.Linear(3, 4)), path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_figures_are_bounded() -> None:
    model, inputs = model_and_inputs("gpt2")
    found = estimate(model, inputs, optimizer="adamw")
    figure = found.plot()
    assert [trace.name for trace in figure.data] == list(found.timeline.categories)
    tops = sum(trace.y for trace in figure.data)
    assert tops.max() == found.peak_bytes
    icicle = json.loads(summary(model).plot().to_json())["data"][0]
    assert len(icicle["ids"]) == len(set(icicle["ids"]))
    assert set(icicle["parents"]) <= {"", *icicle["ids"]}


def test_an_icicles_children_do_not_outgrow_their_parent() -> None:
    model, inputs = model_and_inputs("t5")
    figures = [
        summary(model).plot(),
        flops_figure(summary(model, inputs)),
        peak_figure(estimate(model, inputs, optimizer="adamw")),
    ]
    for figure in figures:
        trace = figure.data[0]
        values = dict(zip(trace.ids, trace.values, strict=True))
        inside = dict.fromkeys(values, 0)
        for name, parent in zip(trace.ids, trace.parents, strict=True):
            if parent:
                inside[parent] += values[name]
        assert all(inside[name] <= values[name] for name in values)


@pytest.mark.parametrize(
    ("row", "answer", "counted"),
    [
        ("yes: 3 GB reserved; training in bf16", "Fits: 3 GB reserved.", "Training in bf16."),
        ("yes, on each of 5 GPUs; inference", "Fits on each of 5 GPUs.", "Inference."),
        ("tight, by freeing cached blocks: 3 GB", "May fit, tightly, by freeing cached blocks: 3 GB.", ""),
        ("no: 3 GB missing", "Does not fit: 3 GB missing.", ""),
        ("no, on none of 5 GPUs", "Fits on none of 5 GPUs.", ""),
    ],
)  # fmt: skip
def test_a_verdict_is_a_sentence_of_the_page(row: str, answer: str, counted: str) -> None:
    (said,) = as_lines([("fits", row)]).rows
    kind = row.partition(",")[0].partition(":")[0]
    expected = [f'<p class="verdict {kind}">{answer}</p>\n']
    expected += [f"<p>{counted}</p>\n"] if counted else []
    assert [*_sentences(OnPage("Model", said, {}, []))] == expected


def test_the_line_about_the_model_is_left_out_beside_a_step() -> None:
    """Its smallest GPU, for the weights, is not the one for the step."""
    (said,) = as_lines([("", "8B params | smallest of 15 GPUs for the weights: a10-24gb")]).rows
    page = OnPage("Model", said, {}, [])
    assert "for the weights" in "".join(_sentences(page))
    assert not [*_sentences(page, has_step=True)]


def test_an_answer_without_a_verdict_begins_with_its_name() -> None:
    (said,) = as_lines([("fastest", "8 GPUs: 12 ms a step; on h100-80gb")]).rows
    assert [*_sentences(OnPage("Model", said, {}, [], "yes"))] == [
        '<p class="verdict yes">Fastest: 8 GPUs: 12 ms a step.</p>\n',
        "<p>On h100-80gb.</p>\n",
    ]


def test_what_to_run_next_stands_under_the_answer(tmp_path: Path) -> None:
    model, inputs = model_and_inputs("llama")
    small = profiles()["t4-16gb"]._replace(total_memory=2**30 + 2**20)
    found = fit(estimate(model, inputs, optimizer="adamw"), small, vary=None)
    text = report(summary(model, inputs), found, tmp_path / "a.html").read_text(encoding="utf-8")
    above, below = text.split("<main>")
    assert found.next_commands
    for command in found.next_commands:
        assert f"<p>Next: <code>{escape(command)}</code></p>" in above
        assert escape(command) not in below
    assert "<span>step time, were there room</span>" in above


def test_what_training_holds_is_a_card_of_a_model_without_a_step(tmp_path: Path) -> None:
    with fake_mode():
        model = nn.Linear(8192, 8192, bias=False)
    card = "<b>1.07 GB</b><span>before activations: AdamW, mixed precision (1.00 GiB)</span>"
    found, step = summary(model), estimate(model, torch.ones(1, 8192), gpu="t4-16gb")
    assert card in report(found, tmp_path / "a.html").read_text(encoding="utf-8")
    assert card not in report(found, step, tmp_path / "b.html").read_text(encoding="utf-8")
