"""Will it fit: the largest size that does, and one more that does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.inspect.small_models import model_and_inputs
from torchfake import CudaProfile, Serve, fake_like, fake_mode, profiles
from torchfake._core.gpu_profiles import usual_profiles
from torchfake.errors import DeviceError, InputsError
from torchfake.inspect import Estimate, estimate, example_inputs, fit
from torchfake.inspect.memory import peaks
from torchfake.inspect.memory.estimate import measure
from torchfake.inspect.records.units import seconds_text


def card(total_memory: int) -> CudaProfile:
    return CudaProfile("My Card", total_memory, 8, 0, 100, "made up")


def layers(width: int, depth: int) -> nn.Module:
    with fake_mode():
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


@pytest.mark.parametrize("optimizer", [None, "sgd", "adamw"])
@pytest.mark.parametrize("total_memory", [3 * 10**9, 10**10, 7 * 10**10])
def test_the_largest_fits_and_the_next_does_not(optimizer: str | None, total_memory: int) -> None:
    model = layers(4096, 4)
    found = estimate(model, torch.empty(8, 4096), optimizer=optimizer)
    (fitted,) = fit(found, card(total_memory))
    assert fitted.limited_by == "memory"

    def found_for(batch: int) -> Estimate:
        with fake_mode():
            x = torch.empty(batch, 4096)
        return estimate(model, x, optimizer=optimizer, gpu=card(total_memory))

    usable = total_memory - fitted.reserved_bytes
    assert fitted.largest is not None
    assert found_for(fitted.largest).reserved_within(usable).fits
    assert not found_for(fitted.largest + 1).reserved_within(usable).fits
    assert fitted.peak_bytes == found_for(8).peak_bytes
    assert fitted.headroom_bytes == usable - fitted.peak_reserved_bytes
    assert fitted.fits == (fitted.headroom_bytes >= 0)


def test_a_step_that_fits_at_no_size() -> None:
    found = estimate(layers(1 << 15, 8), torch.empty(1, 1 << 15), optimizer="adamw")
    (fitted,) = fit(found, "t4-16gb")
    assert (fitted.fits, fitted.largest, fitted.limited_by) == (False, 0, "memory")
    assert fitted.headroom_bytes < -(10**11)


def test_the_longest_sequence_by_memory_and_by_model() -> None:
    model, inputs = model_and_inputs("gpt2")  # 64 positions
    (short,) = fit(estimate(model, inputs, optimizer="adamw"), "t4-16gb", vary="seq")
    assert (short.vary, short.size, short.largest, short.limited_by) == ("seq", 16, 64, "model")
    model, inputs = model_and_inputs("llama")
    (long,) = fit(estimate(model, inputs, optimizer="adamw"), card(2 * 10**9), vary="seq")
    assert long.limited_by == "memory"
    assert long.largest > 1000


def test_inputs_of_example_inputs_are_made_anew() -> None:
    model, _ = model_and_inputs("t5")
    inputs = example_inputs(model, batch=2, seq=8, labels=True)
    (fitted,) = fit(estimate(model, inputs, optimizer="sgd"), card(2 * 10**9))
    assert fitted.size == 2
    assert fitted.largest > 100


def test_all_profiles_and_an_estimate_on_the_cpu() -> None:
    model, inputs = model_and_inputs("vit")
    found = fit(estimate(model, inputs, optimizer="adamw"), vary=None)
    assert [f.gpu for f in found] == list(usual_profiles())
    assert all(f.fits and f.largest is None for f in found)
    on_gpu = estimate(model, inputs, optimizer="adamw", gpu="h100-80gb")
    assert {f.gpu: f.peak_bytes for f in found}["h100-80gb"] == on_gpu.peak_bytes
    assert "h200-141gb" in str(found)
    assert "h200-141gb" in found._repr_html_()
    assert len(found.to_dict()["fits"]) == len(usual_profiles()) < len(profiles())


def test_wrong_options() -> None:
    found = estimate(nn.Linear(3, 4), torch.ones(2, 3))
    with pytest.raises(DeviceError, match="gpu='a100' may mean a100-40gb or a100-80gb"):
        fit(found, "a100")
    remedy = "give vary='batch', vary='seq' or vary=None"
    with pytest.raises(InputsError, match=f"vary='tokens' is not known: {remedy}"):
        fit(found, "t4-16gb", vary="tokens")
    with pytest.raises(InputsError, match=f"vary='users' is for serve=: {remedy}"):
        fit(found, "t4-16gb", vary="users")
    with pytest.raises(InputsError, match="no input has a seq"):
        fit(found, "t4-16gb", vary="seq")
    model, inputs = model_and_inputs("llama")
    generated = estimate(model, inputs["input_ids"], decode=(4, 4))
    with pytest.raises(InputsError, match="decode="):
        fit(generated, "t4-16gb", vary="seq")
    (fitted,) = fit(generated, card(2 * 10**9))
    assert fitted.largest > 2


class Pairs(nn.Module):
    """Runs on even batches alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1000, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.inner(x).chunk(2)
        return a + b


def test_a_model_that_runs_at_some_sizes_alone() -> None:
    model = Pairs()
    (fitted,) = fit(estimate(model, torch.ones(4, 1000), optimizer="sgd"), card(5 * 10**9))
    assert fitted.limited_by == "memory"

    def fits(batch: int) -> bool:
        with fake_mode():
            x = torch.empty(batch, 1000)
        found = estimate(model, x, optimizer="sgd", gpu=card(5 * 10**9))
        return found.reserved_within(5 * 10**9 - fitted.reserved_bytes).fits

    assert fits(fitted.largest // 4 * 4)
    assert not fits(fitted.largest // 4 * 4 + 4)


@pytest.mark.parametrize("batch", [3, 4, 7, 8, 32])
def test_one_size_that_does_not_run_is_no_limit(batch: int) -> None:
    with fake_mode():
        model = nn.BatchNorm1d(1 << 22)  # refuses a batch of 1

    def found(batch: int) -> Estimate:
        with fake_mode():
            x = torch.empty(batch, 1 << 22)
        return estimate(model, x, optimizer="sgd", gpu=card(1))

    exact = card(found(2).peak_reserved_bytes)
    (fitted,) = fit(found(batch), exact, reserved_bytes=0)
    assert (fitted.largest, fitted.limited_by) == (2, "memory")


def test_a_workload_in_the_place_of_a_gpu() -> None:
    with pytest.raises(TypeError, match=r"a Serve is no GPU: fit\(model, .*serve=Serve\("):
        fit(nn.Linear(3, 4), Serve(64))  # type: ignore[arg-type]


def test_the_options_of_the_estimate_hold() -> None:
    found = estimate(
        layers(64, 2), torch.ones(2, 64), gpu="a100-40gb", round_to=1 << 20, workspace_bytes=10**9
    )
    assert fit(found, "a100-40gb", vary=None)[0].peak_bytes == found.peak_bytes


def test_wrong_arguments() -> None:
    found = estimate(nn.Linear(3, 4), torch.ones(2, 3))
    with pytest.raises(TypeError, match="fit takes the result of estimate, not a Linear"):
        fit(nn.Linear(3, 4), "t4-16gb")
    with pytest.raises(DeviceError, match="there is no such GPU"):
        fit(found, ["no such"])
    with pytest.raises(InputsError, match="reserved_bytes='1GB'"):
        fit(found, "t4-16gb", reserved_bytes="1GB")

    class Across(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = fake_like(nn.Linear(3, 3), device="cuda:0")
            self.b = fake_like(nn.Linear(3, 3), device="cuda:1")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x.cuda()).to("cuda:1"))

    with pytest.raises(InputsError, match="on several GPUs"):
        fit(estimate(Across(), torch.ones(2, 3)), "t4-16gb")


class OnTheCpu(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) - torch.ones(2, 4)


def test_the_error_of_a_step_that_does_not_run_on_a_gpu() -> None:
    found = estimate(OnTheCpu(3, 4), torch.ones(2, 3))
    with pytest.raises(InputsError, match="does not run on t4-16gb: RuntimeError: Expected all"):
        fit(found, "t4-16gb")


def test_labels_that_a_loss_refers_to_are_on_the_gpu_and_keep_their_size() -> None:
    labels = torch.ones(2, 4)
    found = estimate(nn.Linear(3, 4), torch.ones(2, 3), loss=lambda out: (out - labels).sum())
    (fitted,) = shown = fit(found, "t4-16gb")
    assert (fitted.fits, fitted.largest, fitted.limited_by) == (True, 2, "model")
    assert "2 (no larger one runs)" in str(shown)
    why = "At batch 3 the step does not run: RuntimeError: The size of tensor a (3) must match"
    assert why in str(shown)
    assert str(shown).endswith("; what loss= refers to keeps its size: make it an input")


def test_the_smallest_gpu_with_room_is_shown() -> None:
    """What the first lines break down is its memory, in whatever order GPUs are given.

    A GPU on which a step is tight is shown where none has more room.
    """
    with fake_mode():
        x = torch.empty(1000, 1024)
    step = estimate(layers(1024, 2), x, optimizer="adamw")
    needed = estimate(layers(1024, 2), x, optimizer="adamw", gpu=card(1 << 40)).peak_reserved_bytes
    assert needed is not None
    small, tight, large = (
        card(size)._replace(name=name)
        for name, size in (("S", needed - 1), ("T", needed), ("L", 2 * needed))
    )
    found = fit(step, large, small, tight, reserved_bytes=0)
    assert [fitted.verdict for fitted in found] == ["yes", "no", "tight"]
    assert found.shown.gpu == large
    assert found.fits
    assert fit(step, small, tight, reserved_bytes=0).shown.gpu == tight
    lines = str(found).splitlines()
    assert lines[0].split()[:8] == ["fits", "yes,", "on", "1", "of", "3", "GPUs:", "L,"]
    assert [line.split()[0] for line in lines[-5:-2]] == ["S", "T", "L"]
    none = fit(step, small, reserved_bytes=0)
    assert none.shown.gpu == small
    assert not none.fits


def test_a_gpu_that_a_step_does_not_run_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(workload: Any, *args: Any, **options: Any) -> Any:
        if workload.gpu.name == "Tesla T4":
            raise InputsError("a kernel of the library needs compute capability 8.0")
        return measure(workload, *args, **options)

    with fake_mode():
        model, x = nn.Linear(64, 64), torch.empty(8, 64)
    monkeypatch.setattr(peaks, "measure", refusing)
    found = fit(estimate(model, x), "t4-16gb", "h100-80gb")
    assert found.refused == {"t4-16gb": "a kernel of the library needs compute capability 8.0"}
    assert [fitted.gpu for fitted in found] == ["h100-80gb"]
    first, second = str(found).splitlines()[:2]
    assert first.startswith("fits            yes, on 1 of 2 GPUs: h100-80gb; inference in fp32")
    assert second == "not on t4-16gb  a kernel of the library needs compute capability 8.0"
    assert found.to_dict()["does_not_run_on"] == dict(found.refused)
    with pytest.raises(InputsError, match=r"needs compute capability 8\.0"):
        fit(estimate(model, x), "t4-16gb")


def test_there_is_one_verdict() -> None:
    step = estimate(layers(1024, 2), torch.empty(8, 1024), gpu=card(1 << 40))
    reserved = step.peak_reserved_bytes
    assert reserved is not None
    found = fit(step, card(int(1.01 * reserved)), vary=None, reserved_bytes=0)
    assert str(found).split()[:2] == ["fits", "tight:"]
    said = found.to_dict()
    assert said["verdict"] == said["fits"][0]["verdict"] == found[0].verdict == "tight"


def test_each_gpu_has_the_time_of_an_estimate_on_it() -> None:
    model, inputs = model_and_inputs("llama")
    found = fit(estimate(model, inputs, optimizer="adamw"), "t4-16gb", "h100-80gb", "a100-80gb")
    for each in found:
        alone = estimate(model, inputs, optimizer="adamw", gpu=each.gpu)
        assert each.step_seconds == alone.step_seconds
        assert alone.step_seconds is not None
        assert seconds_text(alone.step_seconds) in str(found)


def test_no_time_is_given_where_none_is_known() -> None:
    model, inputs = model_and_inputs("llama")
    found = fit(estimate(model, inputs), "mi300x-192gb", vary=None)
    assert found[0].step_seconds is None
    assert "  step time" not in str(found).split("GPU  ")[-1]


def test_a_name_is_answered_with_the_command_that_fits_it():
    line = "torchfake fit llama/ --batch 1 --seq 2048 --optimizer adamw --gpu h100-80gb"
    with pytest.raises(TypeError, match=f"{line}$"):
        fit("llama/", "h100", batch=1, seq=2048, optimizer="adamw")
    with pytest.raises(TypeError, match=r"torchfake fit transformers:LlamaModel --train$"):
        fit("LlamaModel", mode="training")
