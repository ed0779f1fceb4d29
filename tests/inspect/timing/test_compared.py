"""The error that is said is that of the tables of docs/time.md."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from torchfake import profiles
from torchfake.inspect.timing.compared import COMPARISONS, error_text

PAGE = (Path(__file__).parents[3] / "docs" / "time.md").read_text()
_CELLS = r"\| (inference|training) \| (RTX \d+), .* \| held out \| \d+ \| [\d.]+ \|"
ROW = re.compile(rf"^{_CELLS} ([\d.]+) % \| ([\d.]+) % \|", re.MULTILINE)


@pytest.mark.parametrize("is_training", [False, True])
def test_the_error_of_models_of_images_is_the_largest_of_the_page(is_training: bool) -> None:
    of_images = (each for each in COMPARISONS if not each.is_of_tokens)
    (said,) = (each for each in of_images if each.is_training is is_training)
    way = "training" if is_training else "inference"
    found = ROW.findall(PAGE)
    rows = [(gpu, float(half), float(most)) for kind, gpu, half, most in found if kind == way]
    own = [row for row in rows if any(row[0].replace("RTX ", "rtx") in name for name in said.gpus)]
    assert len({gpu for gpu, _, _ in own}) == len(said.gpus)
    assert said.half == math.ceil(max(half for _, half, _ in own))
    assert said.most == math.ceil(max(most for _, _, most in own))


def test_the_error_of_adapters_is_that_of_the_page() -> None:
    (row,) = re.findall(r"^\| adapters.*held out \| 9 \|.*", PAGE, re.MULTILINE)
    half, most = (float(cell) for cell in re.findall(r"([\d.]+) %", row))
    (said,) = (each for each in COMPARISONS if "l40s-48gb" in each.gpus)
    assert (said.half, said.most) == (math.ceil(half), math.ceil(most))


def test_what_was_compared_with_nothing_says_so() -> None:
    known = error_text(profiles()["h100-80gb"], is_of_tokens=True, is_training=True)
    assert known.startswith("on held-out published runs of language models: median")
    for gpu, is_of_tokens, is_training in (
        ("t4-16gb", True, True),
        ("h100-80gb", True, False),
        ("h100-80gb", False, True),
    ):
        found = error_text(profiles()[gpu], is_of_tokens=is_of_tokens, is_training=is_training)
        assert found.startswith("not known: ")
        assert "was not compared with any measurement" in found
    assert error_text(None, is_of_tokens=True, is_training=True).startswith("not known")
