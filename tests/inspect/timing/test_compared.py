"""The error that is said is that of the tables of docs/time.md."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from torchfake import estimate, fake_mode, fit, plan, profiles
from torchfake.inspect.records.units import seconds_text
from torchfake.inspect.show.step_time import kind_of
from torchfake.inspect.timing.compared import (
    COMPARISONS,
    IMAGES,
    LANGUAGE,
    MIXTURES,
    OTHERS,
    Comparison,
    error_text,
    kind_of_model,
)

PAGE = (Path(__file__).parents[3] / "docs" / "time.md").read_text()
_CELLS = r"\| (inference|training) \| ([A-Z]+ ?\d+), .* \| held out \| \d+ \| [\d.]+ \|"
ROW = re.compile(rf"^{_CELLS} ([\d.]+) % \| ([\d.]+) % \|", re.MULTILINE)
OF_IMAGES = [each for each in COMPARISONS if each.kind == IMAGES]


@pytest.mark.parametrize("said", OF_IMAGES)
def test_the_error_of_models_of_images_is_the_largest_of_the_page(said: Comparison) -> None:
    way = "training" if said.is_training else "inference"
    found = ROW.findall(PAGE)
    rows = [(gpu, float(half), float(most)) for kind, gpu, half, most in found if kind == way]
    own = [row for row in rows if any(row[0].lower().replace(" ", "") in g for g in said.gpus)]
    assert {gpu.partition("-")[0] for gpu in said.gpus} == {
        row[0].lower().replace(" ", "") for row in own
    }
    assert said.half == math.ceil(max(half for _, half, _ in own))
    assert said.most == math.ceil(max(most for _, _, most in own))


def test_the_error_of_adapters_is_that_of_the_page() -> None:
    (row,) = re.findall(r"^\| adapters.*held out \| 9 \|.*", PAGE, re.MULTILINE)
    half, most = (float(cell) for cell in re.findall(r"([\d.]+) %", row))
    (said,) = (each for each in COMPARISONS if "l40s-48gb" in each.gpus)
    assert (said.half, said.most) == (math.ceil(half), math.ceil(most))


def test_mixtures_of_experts_were_compared_with_nothing() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 99}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    with fake_mode():
        model = MixtralForCausalLM(MixtralConfig(**sizes, **heads))
        tokens = torch.ones(1, 16, dtype=torch.int64)
    assert kind_of(estimate(model, tokens)) == MIXTURES
    text = error_text(profiles()["h100-80gb"], MIXTURES, is_training=True)
    assert text.startswith("not known: training of mixtures of experts on this GPU")


def test_what_was_compared_with_nothing_says_so() -> None:
    known = error_text(profiles()["h100-80gb"], LANGUAGE, is_training=True)
    assert known.startswith("on held-out published runs of language models: median")
    for gpu, kind, is_training in (
        ("t4-16gb", LANGUAGE, True),
        ("h100-80gb", LANGUAGE, False),
        ("h100-80gb", IMAGES, True),
        ("h100-80gb", OTHERS, True),
    ):
        found = error_text(profiles()[gpu], kind, is_training=is_training)
        assert found.startswith("not known: ")
        assert "was not compared with any measurement" in found
    assert error_text(None, LANGUAGE, is_training=True).startswith("not known")


def test_the_error_of_the_host_is_that_of_the_page() -> None:
    assert "two thirds or one and a half times as long" in " ".join(PAGE.split())
    found = error_text(None, LANGUAGE, is_training=True, is_bound_by_launches=True)
    assert found.startswith("bound by launches: 0.67 to 1.5 times that")


TOKENS, IMAGE, SOUND = (
    torch.zeros(2, 8, dtype=torch.long),
    torch.zeros(2, 3, 8, 8),
    torch.zeros(2, 80, 8),
)


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ([TOKENS], LANGUAGE),
        ([TOKENS, TOKENS.bool()], LANGUAGE),
        ([IMAGE], IMAGES),
        ([IMAGE, TOKENS[:, 0]], IMAGES),
        ([IMAGE, TOKENS], OTHERS),
        ([SOUND, TOKENS], OTHERS),
        ([IMAGE[0, 0]], OTHERS),
        ([], OTHERS),
    ],
)
def test_the_kind_of_a_model_is_that_of_its_inputs(inputs: list[torch.Tensor], kind: str) -> None:
    assert kind_of_model(inputs) == kind


def test_the_error_follows_the_time_of_estimate_and_fit() -> None:
    with fake_mode():
        model, x = nn.Conv2d(3, 8, 3), torch.empty(4, 3, 32, 32)
    for gpu, said in (("rtx3090-24gb", "models of images: median 11 %"), ("l4-24gb", "not known")):
        found = estimate(model, x, gpu=gpu)
        for text in (str(found), str(fit(found, gpu, vary=None))):
            lines = text.splitlines()
            (at,) = (i for i, line in enumerate(lines) if line.startswith("step time"))
            assert lines[at + 1].startswith("  error ")
            assert said in lines[at + 1]


@pytest.mark.parametrize(
    ("gpu", "error"), [("rtx3090-24gb", "median error 11 %"), ("l4-24gb", "error not known")]
)
def test_the_first_line_has_the_time_and_its_error(gpu: str, error: str) -> None:
    with fake_mode():
        model, x = nn.Conv2d(3, 8, 3), torch.empty(4, 3, 32, 32)
    found = estimate(model, x, gpu=gpu)
    assert found.step_seconds is not None
    for text in (str(found), str(fit(found, gpu, vary=None))):
        assert f", {seconds_text(found.step_seconds)} a pass ({error}); " in text.splitlines()[0]


def test_the_first_line_of_a_lower_bound_is_at_least_so_long() -> None:
    def step(x: torch.Tensor) -> None:
        torch.linalg.svd(x @ x)

    with fake_mode():
        x = torch.empty(64, 64)
    first, *_ = str(estimate(step, x, gpu="h100-80gb")).splitlines()
    assert re.search(r", at least [\d.]+ us a (pass|step); ", first)


def test_the_first_line_of_a_plan_has_the_time_and_its_error() -> None:
    found = plan(
        lambda: nn.Linear(8, 8),
        mesh_shape=2,
        parallelize=lambda module, mesh: module,
        inputs=lambda: torch.empty(2, 8),
        gpu="h100-80gb",
    )
    assert found.step_seconds is not None
    time = (
        f", {seconds_text(found.step_seconds)} a step (bound by launches: 0.67 to 1.5 times that); "
    )
    assert time in str(found).splitlines()[0]
    assert "\n  error " in str(found)


def test_a_step_of_the_users_own_has_the_kind_of_its_batch() -> None:
    with fake_mode():
        model = nn.Conv2d(3, 8, 3)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()

    assert kind_of(estimate(step, IMAGE, gpu="t4-16gb")) == IMAGES
