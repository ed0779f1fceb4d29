"""What is served, as a record and as text; how many users and how long a context fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.inspect.memory.sizes_run import runs_of
from tests.inspect.serving.served_models import served_model
from torchfake import Serve, estimate, fit, profiles
from torchfake.errors import InputsError
from torchfake.inspect.question import Question, answer_or_advise

SMALL = profiles()["t4-16gb"]._replace(total_memory=32 << 20)


def fits_at(model: nn.Module, serve: Serve, usable: int) -> bool:
    reserved = estimate(model, serve=serve, gpu=SMALL).peak_reserved_bytes
    assert reserved is not None
    return reserved <= usable


def test_the_most_users() -> None:
    model, serve = served_model("llama"), Serve(512, 2, prompt=64)
    (found,) = fit(model, SMALL, serve=serve, reserved_bytes=0, vary="users")
    assert found.fits
    assert found.users is not None
    assert (found.users, found.context) == (found.largest, None)
    assert fits_at(model, Serve(512, found.users, prompt=64), SMALL.total_memory)
    assert found.limited_by == "memory"
    assert found.tokens == found.users * 512
    assert found.to_dict()["tokens"] == found.tokens


def test_the_longest_context() -> None:
    model, serve = served_model("llama"), Serve(512, 8, cache="static", prompt=64)
    (found,) = fit(model, SMALL, serve=serve, reserved_bytes=0, vary="context")
    assert found.users is None
    assert found.context is not None
    assert found.tokens == found.context * 8
    longer = Serve(found.context, 8, cache="static", prompt=64)
    assert fits_at(model, longer, SMALL.total_memory)


def test_a_context_ends_where_the_positions_of_the_model_do() -> None:
    model = served_model("gpt2")
    (found,) = fit(model, "t4-16gb", serve=Serve(64, 2), vary="context")
    assert (found.context, found.context_limited_by) == (1024, "model")
    assert found.users is None
    shown = str(fit(model, "t4-16gb", serve=Serve(64, 2), vary="context"))
    assert "2 users x 1,024 tokens (the model's limit)" in shown


def test_an_estimate_of_serving_can_be_fitted() -> None:
    found = fit(estimate(served_model("llama"), serve=Serve(64, 2)), "t4-16gb", vary=None)
    assert found[0].fits
    assert found[0].largest is None
    assert "serves" in str(found)


def test_refusals() -> None:
    model = served_model("llama")
    with pytest.raises(InputsError, match="leave out the inputs"):
        estimate(model, torch.zeros(1, 2, dtype=torch.long), serve=Serve(8))
    with pytest.raises(InputsError, match="serve= is inference"):
        estimate(model, serve=Serve(8), optimizer="adamw")
    with pytest.raises(InputsError, match=r"is not a torchfake\.Serve"):
        estimate(model, serve=8192)
    with pytest.raises(InputsError, match="supports transformers models"):
        estimate(nn.Linear(3, 4), serve=Serve(8))
    with pytest.raises(InputsError, match="for a model, not for a Estimate"):
        fit(estimate(model, serve=Serve(8)), serve=Serve(8))
    with pytest.raises(InputsError, match="'users', 'context' or None"):
        fit(model, "t4-16gb", serve=Serve(8), vary="seq")


@pytest.mark.parametrize("vary", [None, "users", "context"])
def test_the_estimate_of_a_question_is_the_run_on_its_first_gpu(
    vary: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, serve = served_model("llama"), Serve(64, 2)
    ran = runs_of(monkeypatch)
    expected = fit(estimate(model, serve=serve), "t4-16gb", "h100-80gb", vary=vary)
    apart = [*ran]
    ran.clear()
    question = Question(serve=serve, gpus=("t4-16gb", "h100-80gb"), vary=vary)
    found = answer_or_advise(model, question)["fits"]
    assert found.to_dict() == expected.to_dict()
    assert ran == apart[1:]
