"""``torchfake fit``."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import SMALL
from torchfake import profiles
from torchfake.inspect.records.units import display

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns on import


Run = Callable[..., tuple[int, str, str]]


def test_fit(run: Run) -> None:
    options = ("--seq", "32", "--batch", "10000", "--optimizer", "adamw")
    gpus = ("--gpu", "h100-80gb", "--gpu", "t4-16gb")
    code, out, err = run("fit", *SMALL, *options, *gpus)
    assert (code, err) == (0, "")
    assert out.startswith("fits ")
    assert " yes, on each of " in out.splitlines()[0]
    assert out.splitlines()[0].endswith(
        "; training with adamw in fp32, batch 10,000 per GPU, global batch 10,000, seq 32"
    )
    rows = [line.split() for line in out.splitlines() if "-" in line[:12]]
    assert rows[0][0] == "t4-16gb"
    assert all(row[-4] == "yes" and int(row[-1].replace(",", "")) > 10_000 for row in rows)
    code, out, _ = run("fit", *SMALL, *options, "--vary", "none", "--gpu", "all")
    assert code == 0
    assert all(f"\n{name} " in out for name in profiles())


def test_it_says_how_large_the_model_is_and_that_nobody_named_its_size(run: Run) -> None:
    whisper, note = "transformers:WhisperForConditionalGeneration", "default config of the class"
    _, out, _ = run("fit", whisper, "--gpu", "t4", "--vary", "none")
    assert re.search(r"\nmodel +WhisperForConditionalGeneration, 37.8M parameters\n", out)
    assert re.search(rf"\nnote +the {note}: ", out)
    _, out, _ = run("fit", whisper, "--gpu", "t4", "--vary", "none", "--json")
    assert json.loads(out)["notes"][0].startswith(f"the {note}")
    _, out, _ = run("fit", *SMALL, "--gpu", "t4", "--vary", "none")
    assert note not in out


def test_fit_says_no(run: Run, tmp_path: Path) -> None:
    gpus = tmp_path / "gpus.toml"
    gpus.write_text('[small]\ntotal_memory = "1.001 GiB"\n[large]\ntotal_memory = "9 GiB"\n')
    options = ("--seq", "32", "--train", "--profiles", str(gpus))
    no_search = ("--batch", "64", "--gpu", "small", "--vary", "none")
    code, out, _ = run("fit", *SMALL, *options, *no_search, "--json")
    assert code == 1
    assert json.loads(out)["fits"][0]["fits"] is False
    code, out, _ = run("fit", *SMALL, *options, "--vary", "seq", "--json")
    assert code == 0
    assert [fit["gpu"] for fit in json.loads(out)["fits"]] == ["small", "large"]


def test_the_first_line_says_what_was_counted(run: Run) -> None:
    options = ("--seq", "32", "--batch", "4", "--gpu", "h100-80gb", "--vary", "none")
    for given, counted in (
        (("--train",), "training with adamw in fp32, batch 4 per GPU, global batch 4, seq 32"),
        (
            ("--optimizer", "none", "--accumulate", "3"),
            "training without an optimizer in fp32, batch 4 per GPU, "
            "global batch 12 (3 micro-batches), seq 32",
        ),
        (
            ("--optimizer", "SGD"),
            "training with SGD in fp32, batch 4 per GPU, global batch 4, seq 32",
        ),
        ((), "inference in fp32, batch 4 per GPU, seq 32"),
    ):
        code, out, err = run("fit", *SMALL, *options, *given)
        assert (code, err) == (0, "")
        time = r"[\d.]+ \w?s a (step|pass) \(bound by launches: .*\)"
        line = rf", on h100-80gb, {time}; {re.escape(counted)}\n"
        assert re.search(line, out)
        code, out, _ = run("inspect", *SMALL, *options[:-2], *given)
        assert re.search(line, out)
        assert out.splitlines()[2].startswith("fits  yes: ")  # above the model
        assert "\npeak  " in run("inspect", *SMALL, *given, "--batch", "4")[1]
    code, out, _ = run("fit", *SMALL, *options, "--train", "--json")
    said = json.loads(out)["estimate"]
    assert said["optimizer"] == "adamw"
    held = said["peak"]["by_category"]
    assert held["optimizer state"] == 2 * held["parameters"]
    _, out, _ = run("fit", *SMALL, *options, "--accumulate", "3", "--json")
    said = json.loads(out)["estimate"]
    assert (said["batch"], said["micro_batches"], said["global_batch"]) == (4, 3, 12)


@pytest.mark.parametrize(
    "given", [("--serve", "64,users=3"), ("--decode", "61,4"), ("--batch", "2", "--seq", "64")]
)
def test_more_tokens_than_the_model_has_positions(run: Run, given: tuple[str, ...]) -> None:
    """The last token that is generated has no position: the model does not read it."""
    short = ("-c", "max_position_embeddings=48", "--gpu", "t4-16gb")
    code, out, err = run("fit", *SMALL, *short, *given)
    assert (code, err) == (0, "")
    assert ", past the model's 48 positions" in out.splitlines()[0]
    warning = "64 tokens are more than the model's max_position_embeddings, 48"
    assert f"\nwarning {warning}\n" in re.sub(" +", " ", out)
    _, out, _ = run("fit", *SMALL, *short, *given, "--json")
    assert json.loads(out)["estimate"]["warnings"] == [warning]
    _, out, _ = run("fit", *SMALL, "-c", "max_position_embeddings=64", *short[2:], *given)
    assert "warning" not in out


def test_the_longest_context_is_the_models(run: Run) -> None:
    options = ("-c", "max_position_embeddings=48", "--gpu", "t4-16gb")
    for context in (32, 64):
        code, out, _ = run("fit", *SMALL, *options, "--serve", f"{context},users=3")
        assert code == 0
        assert f"users x {context} tokens or 3 users x 48 tokens (the model's limit)\n" in out


def test_steps_of_several_lengths(run: Run) -> None:
    step = ("fit", *SMALL, "--train", "--gpu", "t4-16gb", "--vary", "none")
    code, out, err = run(*step, "--batch", "16", "--lengths", "48,16,64,32")
    assert (code, err) == (0, "")
    assert re.search(r"(?m)^lengths +4 steps of 16 to 64 tokens; the peak is that of 64,", out)
    for words, message in (
        (("--lengths", "48;16"), "--lengths '48;16' is not N,N, such as 512,384,640"),
        (("--lengths", "48", "--seq", "48"), "leave out --seq"),
        (("--lengths", "48,0"), "--lengths '48,0' is not N,N"),
    ):
        code, out, err = run(*step, *words)
        assert (code, out) == (2, "")
        assert message in err


def test_serving(run: Run) -> None:
    served = ("--serve", "64,users=3,cache_dtype=fp8", "--gpu", "t4-16gb")
    code, out, err = run("fit", *SMALL, *served, "--json", "--vary", "context")
    assert (code, err) == (0, "")
    (fit,) = json.loads(out)["fits"]
    assert fit["serve"]["users"] == 3
    assert fit["users"] is None
    assert fit["context"] >= 64
    code, out, _ = run("inspect", *SMALL, *served[:2])
    assert code == 0
    assert "3 users x 64 tokens, prompts of 63" in out
    code, _, err = run("fit", *SMALL, *served, "--train")
    assert (code, err[:37]) == (2, "error: --serve says what is run: leav")


def test_units(run: Run) -> None:
    options = ("--seq", "32", "--train", "--gpu", "t4-16gb", "--vary", "none")
    shown = {}
    for units in ("GB", "GiB", "both"):
        code, out, _ = run("fit", *SMALL, *options, "--units", units)
        assert code == 0
        shown[units] = next(line for line in out.splitlines() if line.startswith("t4-16gb"))
    assert "15.6 GB" in shown["GB"]
    assert "iB" not in shown["GB"]
    assert "14.6 GiB" in shown["GiB"]
    assert "GB" not in shown["GiB"]
    assert "15.6 GB (14.6 GiB)" in shown["both"]
    assert display.units is None
    code, _, err = run("fit", *SMALL, *options, "--units", "TB")
    assert (code, err) == (2, "error: units='TB' are not GB, GiB or both\n")


def test_a_snapshot_of_the_step(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "step.pickle"
    options = ("--seq", "32", "--train", "--gpu", "t4-16gb", "--vary", "none", "--json")
    options += ("--snapshot", str(file), "--allocator", "expandable_segments:True")
    code, out, _ = run("fit", *SMALL, *options)
    assert code == 0
    segments = pickle.loads(file.read_bytes())["segments"]
    total = sum(segment["total_size"] for segment in segments)
    assert total == json.loads(out)["fits"][0]["peak_reserved_bytes"]
    assert all(segment["is_expandable"] for segment in segments)


def test_options_of_the_allocator_that_are_wrong(run: Run, tmp_path: Path) -> None:
    code, _, err = run("inspect", *SMALL, "--snapshot", str(tmp_path / "step.pickle"))
    assert (code, err) == (2, "error: --snapshot needs a GPU: name one with --gpu\n")
    code, _, err = run("fit", *SMALL, "--allocator", "max_split_size_mb:1")
    assert code == 2
    assert "max_split_size_mb:1 is too small: give 20 (MiB) or more" in err


def test_weights_alone(run: Run) -> None:
    code, out, err = run("fit", *SMALL, "--weights", "nf4", "--gpu", "t4,H100")
    assert (code, err) == (0, "")
    assert out.startswith("fits       yes for the weights alone, on 2 of 2 GPUs: t4-16gb, h100-80")
    code, out, _ = run("inspect", *SMALL, "--weights", "int8", "--json")
    assert code == 0
    assert json.loads(out)["weights"]["num_quantized"] == 36_864
    code, _, err = run("fit", *SMALL, "--dtype", "fp8")
    assert (code, err[:53]) == (2, "error: --dtype fp8: no kernel multiplies weights that")
    code, _, err = run("fit", *SMALL, "--gpu", "a100")
    assert (code, err) == (
        2, "error: --gpu='a100' may mean a100-40gb or a100-80gb: give one of these names\n"
    )  # fmt: skip
