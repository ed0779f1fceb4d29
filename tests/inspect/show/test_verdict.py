"""The first line says whether it fits, by what is reserved, and for which sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.inspect.small_models import model_and_inputs
from torchfake import Serve, estimate, fit, plan
from torchfake.errors import InputsError
from torchfake.inspect import set_units
from torchfake.inspect.memory.fit import Fit
from torchfake.inspect.records.units import bytes_text, compared_bytes, display, seconds_text
from torchfake.inspect.show.verdict import asked_text, largest_text


def first_line(found: Any) -> str:
    return " ".join(repr(found).splitlines()[0].split())


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4)))


def test_of_an_estimate() -> None:
    model, inputs = model_and_inputs("gpt2")
    found = estimate(model, inputs, optimizer="adamw", gpu="t4-16gb", accumulate=2)
    assert first_line(found).startswith("fits yes: ")
    assert found.step_seconds is not None
    assert first_line(found).endswith(
        f" on Tesla T4, {seconds_text(found.step_seconds)} a step (bound by launches: 0.67 to 1.5 times that); training with "
        "adamw in fp32, batch 2 per GPU, global batch 4 (2 micro-batches), seq 16"
    )
    assert "GiB) to spare" in first_line(found)
    assert f">yes</span>{first_line(found)[8:]}</td>" in found._repr_html_()
    assert first_line(estimate(model, inputs)).startswith("step ")
    assumed = estimate(model, inputs, device="cuda")
    assert first_line(assumed) == (
        "step inference in fp32 on cuda:0, NVIDIA A100-SXM4-80GB, which is assumed: gpu= names "
        "another; batch 2 per GPU, seq 16"
    )
    assert assumed.to_dict()["is_gpu_assumed"]
    assert "which is assumed: gpu= names another" in assumed._repr_html_()
    assert not estimate(model, inputs, gpu="a100-80gb").is_gpu_assumed
    decoded = estimate(model, inputs, decode=(8, 4), gpu="t4-16gb")
    assert first_line(decoded).endswith(
        " to generate by eager transformers (error not known); generation in fp32, batch 2 per "
        "GPU, a prompt of 8, 4 new tokens"
    )
    assert " a token; torchfake serve tells an engine's\n" in str(decoded)


def test_training_on_the_cpu_says_why() -> None:
    model, x = layers(), torch.ones(8, 4096)
    words = "on cpu, as no gpu is named; batch 8"
    assert words in first_line(estimate(model, x, optimizer="adamw"))
    for options in ({"device": "cpu", "optimizer": "adamw"}, {}, {"gpu": "t4", "optimizer": "sgd"}):
        assert "no gpu is named" not in str(estimate(model, x, **options))  # type: ignore[arg-type]


def test_of_several_gpus() -> None:
    found = estimate(layers(), torch.ones(8, 4096), optimizer="adamw", gpu="t4-16gb")
    x = torch.empty(1_500_000, 4096, device="meta")
    large = estimate(layers(), x, optimizer="adamw", gpu="t4-16gb")
    assert first_line(large).startswith("fits no: ")
    does = "training with adamw in fp32 on the sum of the output"
    assert " missing, on Tesla T4; " in first_line(large)
    assert f"; {does}, batch 1,500,000 per GPU" in first_line(large)
    several = fit(found, "t4-16gb", "h100-80gb", vary=None)
    assert first_line(several) == (
        f"fits yes, on each of 2 GPUs; {does}, batch 8 per GPU, global batch 8"
    )
    assert first_line(fit(large, "t4-16gb", "a100-40gb", vary=None)) == (
        f"fits no, on none of 2 GPUs; {does}, batch 1,500,000 per GPU, global batch "
        "1,500,000; with checkpointing, or on several GPUs: see torchfake plan"
    )
    some = fit(large, "t4-16gb", "b200-180gb", vary=None)
    assert first_line(some).startswith("fits yes, on 1 of 2 GPUs: b200-180gb;")


def test_what_does_not_fit_has_the_time_of_a_gpu_with_room() -> None:
    x = torch.empty(1_500_000, 4096, device="meta")
    large = estimate(layers(), x, optimizer="adamw", gpu="t4-16gb")
    lines = str(fit(large, "t4-16gb", "b200-180gb", vary=None)).splitlines()
    assert large.step_seconds is not None
    assert seconds_text(large.step_seconds) not in "\n".join(lines)
    (time,) = (line for line in str(large).splitlines() if line.startswith("step time"))
    assert time.endswith(f" {seconds_text(large.step_seconds)} on Tesla T4, were there room")


def test_of_many_gpus() -> None:
    """The first six are named; a GPU whose rates are unknown has no time, and a note says why."""
    x = torch.empty(300_000, 4096, device="meta")
    large = estimate(layers(), x, optimizer="adamw", gpu="t4-16gb")
    names = ["h200-141gb", "b200-180gb", "mi300x-192gb", "b300-288gb", "mi325x-256gb"]
    names += ["l40s-48gb", "h100-80gb", "a100-80gb"]
    found = fit(large, "t4-16gb", *names, vary=None)
    sure, tight = ([fit.gpu for fit in found if fit.verdict == v] for v in ("yes", "tight"))
    more = f" and {len(sure) - 6} more" * (len(sure) > 7)
    named = ", ".join(sure[: 6 if more else None])
    also = f", tight on {len(tight)} more: {', '.join(tight)}" * bool(tight)
    assert len([*sure, *tight]) == 8
    assert f"yes, on {len(sure)} of 9 GPUs: {named}{more}{also};" in first_line(found)
    note = "No step time on mi300x-192gb, mi325x-256gb, whose FLOP/s and bandwidths are not known here."
    assert note in str(found)
    assert {each.gpu for each in found if each.step_seconds is None} == {*names[2:3], names[4]}
    assert "No step time" not in str(fit(large, "t4-16gb", "b200-180gb", vary=None))


def test_launches_that_bound_the_time_of_several_gpus_are_noted() -> None:
    small, large = (
        estimate(nn.Linear(n, n), torch.empty(n, n, device="meta"), gpu="a100-80gb")
        for n in (8, 1 << 14)
    )
    note = "Launches bound the step time on all of these: the host starts kernels, and the GPU "
    assert note in str(fit(small, "h100-80gb", "b200-180gb", vary=None))
    assert "Launches" not in str(fit(small, "h100-80gb", vary=None))
    assert "Launches" not in str(fit(large, "h100-80gb", "b200-180gb", vary=None))


def test_of_a_plan() -> None:
    found = plan(
        lambda: nn.Linear(64, 64),
        mesh_shape=2,
        inputs=lambda: torch.empty(4, 64),
        optimizer="sgd",
        gpu="h100-80gb",
    )
    assert first_line(found).startswith("fits yes: ")
    assert found.step_seconds is not None
    assert first_line(found).endswith(
        f"on each of 2 x NVIDIA H100 80GB HBM3, {seconds_text(found.step_seconds)} a step (bound by launches: 0.67 to 1.5 times that); "
        "training with sgd in fp32 parameters on the sum of the output, batch 4 per rank; "
        "2 models of their own: the ranks send nothing"
    )


def test_units_are_set() -> None:
    texts = {}
    try:
        for units in (None, "GB", "GiB", "both"):
            set_units(units)
            texts[units] = bytes_text(80 * 2**30), compared_bytes(80 * 2**30), bytes_text(12)
    finally:
        set_units(None)
    assert texts == {
        None: ("85.9 GB", "85.9 GB (80.0 GiB)", "12 B"),
        "GB": ("85.9 GB", "85.9 GB", "12 B"),
        "GiB": ("80.0 GiB", "80.0 GiB", "12 B"),
        "both": ("85.9 GB (80.0 GiB)", "85.9 GB (80.0 GiB)", "12 B"),
    }
    with pytest.raises(InputsError, match="units='MB' are not GB, GiB or both"):
        set_units("MB")
    assert display.units is None


def test_serving_says_none_where_no_user_fits() -> None:
    serve = Serve(4096, 4)
    fit_of = partial(Fit, "t4-16gb", 1, 1, 1, "users", None, None, "memory", 1, serve=serve)
    assert largest_text(fit_of(users=0, context=0)) == "none"
    assert largest_text(fit_of(users=0, context=512)) == "4 users x 512 tokens"
    assert (
        largest_text(fit_of(users=3, context=512))
        == "3 users x 4,096 tokens or 4 users x 512 tokens"
    )
    assert largest_text(fit_of()) == ""


def test_a_gpu_without_figures_has_no_time() -> None:
    why = "step time not estimated: the FLOP/s and bandwidths of AMD Instinct MI300X are not known"
    found = estimate(nn.Linear(3, 4), torch.ones(2, 3), gpu="mi300x")
    assert why in " ".join(str(found).split())
    planned = plan(
        lambda: nn.Linear(8, 8), mesh_shape=2, inputs=torch.ones(2, 8), parallelize=None,
        gpu="mi300x", optimizer="sgd",
    )  # fmt: skip
    assert why in " ".join(str(planned).split())
    assert why.partition(" not ")[2] in found._repr_html_()


def test_the_first_line_ends_with_the_largest_size_that_was_asked_for() -> None:
    step = estimate(nn.TransformerEncoderLayer(16, 2, 16), torch.ones(8, 2, 16), gpu="t4")
    found = fit(step, "t4", vary=None)
    of_seq = replace(found[0], vary="seq", largest=1024, limited_by="model")
    assert asked_text(found) == asked_text([replace(of_seq, vary="batch")]) == ""
    assert asked_text([of_seq]) == "; max seq 1,024 (the model's limit)"
    other = replace(of_seq, gpu="h100-80gb", largest=4096, limited_by=None)
    assert asked_text([of_seq, other]) == "; max seq 4,096 on h100-80gb"
    assert asked_text([replace(of_seq, largest=0)]) == "; max seq none"
