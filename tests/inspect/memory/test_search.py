"""What the search leaves out changes no answer: replays of what is too large, hopeless sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.inspect import small_models
from tests.inspect.memory.sizes_run import runs_of
from torchfake import CudaProfile, Serve, fake_mode
from torchfake.inspect import Fits, estimate, fit
from torchfake.inspect.memory import peaks as of_step
from torchfake.inspect.memory.limited import Line
from torchfake.inspect.memory.search import Search

CARDS = [CudaProfile(f"Card {n}", n * 10**8, 8, 0, 100, "made up") for n in (15, 18, 30, 70)]


def step() -> Any:
    with fake_mode():
        net = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4)))
        return estimate(net, torch.empty(8, 4096), optimizer="sgd")


def test_the_answers_are_those_of_whole_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(found: Fits) -> list[dict[str, Any]]:
        return [each.to_dict() for each in found]

    peak = of_step.Peaks.peak
    quick = answers(fit(step(), *CARDS))

    def whole(peaks: Any, gpu: Any, size: Any, *, only_if_fits: bool = False) -> Any:
        return peak(peaks, gpu, size)

    monkeypatch.setattr(of_step.Peaks, "peak", whole)
    monkeypatch.setattr(of_step.Peaks, "least_bytes", lambda peaks, gpu: 0)
    assert quick == answers(fit(step(), *CARDS))
    assert [each["largest"] == 0 for each in quick] == [True, False, False, False]


def test_what_is_too_large_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = of_step.Peaks(step(), "batch", 1 << 30)
    assert peaks.peak(CARDS[1], 8) is not None
    largest, _ = Search(peaks, CARDS[1], 8).run()
    reserved = peaks.peak(CARDS[1], largest + 1)
    monkeypatch.setattr(of_step, "fitted_bytes", None)  # a call would fail
    again = of_step.Peaks(step(), "batch", 1 << 30)
    size = 10 * largest
    told = again.peak(CARDS[1], size, only_if_fits=True)
    assert told == again.allocated(CARDS[1], size)
    assert told is not None
    assert told > again.usable_bytes(CARDS[1])
    assert reserved is not None
    assert reserved > again.usable_bytes(CARDS[1])


def test_no_size_is_run_where_the_weights_alone_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = runs_of(monkeypatch)
    tiny = CudaProfile("My Card", (1 << 30) + 10**8, 8, 0, 100, "made up")
    (fitted,) = fit(step(), tiny)
    assert (fitted.largest, fitted.limited_by) == (0, "memory")
    assert ran == [8]  # the given size only


def test_the_sizes_beside_a_predicted_limit_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = runs_of(monkeypatch)
    (fitted,) = fit(step(), CARDS[3])
    assert fitted.largest is not None
    assert {fitted.largest, fitted.largest + 1} <= {*ran}  # scratch of sums is not on a line
    assert len(ran) < 10
    monkeypatch.setattr(Line, "is_straight", False)
    predicted = len(ran)
    assert fit(step(), CARDS[3])[0] == fitted
    assert len(ran) > 2 * predicted + 5


class Grows(nn.Linear):
    """A layer that keeps one tensor more from a size on."""

    at = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = x * 2 if len(x) >= self.at else x
        return super().forward(x) + more


def test_a_limit_with_other_storages_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_mode():
        net = Grows(4096, 4096)
        given = estimate(net, torch.empty(8, 4096), optimizer="sgd")
    net.at = 1 << 30
    (plain,) = fit(given, CARDS[3])
    assert plain.largest is not None
    net.at = plain.largest - 2
    ran = runs_of(monkeypatch)
    (fitted,) = fit(given, CARDS[3])
    assert fitted.largest is not None
    assert fitted.largest < plain.largest
    assert {fitted.largest, fitted.largest + 1} <= {*ran}


def mixture() -> tuple[nn.Module, Any]:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, vocab_size=100,
    )  # fmt: skip
    return MixtralForCausalLM(config), small_models.llama()[1]


@pytest.mark.parametrize("make", [small_models.llama, small_models.gpt2, mixture])
@pytest.mark.parametrize("vary", ["batch", "users"])
def test_a_predicted_limit_is_that_of_runs(
    make: Any, vary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = make()
    small = CARDS[0]._replace(total_memory=256 << 20)

    def found() -> Any:
        if vary == "users":
            served = estimate(model, serve=Serve(64, 2), gpu=small, answer="typical")
            return fit(served, small, vary="users", reserved_bytes=0)[0].to_dict()
        trained = estimate(model, inputs, optimizer="adamw", gpu=small, answer="typical")
        return fit(trained, small, reserved_bytes=0)[0].to_dict()

    ran = runs_of(monkeypatch)
    quick = found()
    number = len(ran)
    monkeypatch.setattr(Line, "is_through", lambda *_: False)
    assert found() == quick
    assert quick["largest"] + 1 in ran
    assert number + (vary == "users") <= len(ran) - number  # scratch of sums is not on a line


@pytest.mark.parametrize("told", [True, False])
def test_a_wrong_prediction_changes_no_answer(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (fitted,) = fit(step(), CARDS[3])
    monkeypatch.setattr(Line, "fits", lambda *_: told)
    assert fit(step(), CARDS[3])[0] == fitted
