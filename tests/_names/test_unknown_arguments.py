"""A public function names an argument that it does not have, and what may be meant."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

import torchfake
import torchfake.distributed
from torchfake import Serve, estimate, fake_mode, fit, meta_init, plan, report
from torchfake.distributed import plan_target, search_layouts

LAYER = torch.nn.Linear(3, 4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: estimate(LAYER, optim="adamw"), "estimate() has no argument 'optim'; did you me"),
        (lambda: estimate(LAYER, batch_size=4), "'batch_size'; see batch=: instead of inputs: a b"),
        (lambda: estimate(LAYER, quantization="nf4"), "; see weights=: quantize the weights first"),
        (lambda: estimate(LAYER, gradient_checkpointing=True), "; see training=: transformers' ``"),
        (lambda: estimate(LAYER, inputs=3), "'inputs' with a name: give inputs without it, before"),
        (lambda: estimate(LAYER, amp=True), "'amp'; it has module=, optimizer=, loss=, mode=, au"),
        (lambda: plan(LAYER, gpus=8), "; did you mean gpu=? plan_target() and search_layouts() h"),
        (lambda: plan_target("x", tp=2), "plan_target() has no argument 'tp'; see mesh=: the size"),
        (lambda: Serve(context=8, user=4), "Serve() has no argument 'user'; did you mean users=?"),
        (lambda: Serve(8, batch=4), "'batch'; see users=: the number of sequences that are serve"),
        (lambda: fake_mode(cuda=True), "fake_mode() has no argument 'cuda'; see fake_cuda=: ``Fal"),
        (lambda: fake_mode("h100"), "fake_mode() takes no arguments without a name; by name it t"),
        (lambda: meta_init(LAYER), "meta_init() takes no arguments without a name; by name it ta"),
        (
            lambda: fit(LAYER, "t4", margin=1),
            "'margin'; see reserved_bytes=: memory of the GPU",
        ),
        (
            lambda: fit(LAYER, "t4", batch_size=4),
            "fit() has no argument 'batch_size'; see batch=: ",
        ),
        (lambda: search_layouts("x", gpus=1, batch=1, mash=1), "'mash'; did you mean mesh=?"),
        (lambda: fit(LAYER, gpus="t4"), "fit takes GPUs after its first argument: fit(model, 'h1"),
        (lambda: fit(LAYER, "t4", inputs=3), "inputs are for estimate: fit(estimate(model, input"),
        (lambda: report(LAYER, "a.html", title="a"), "report() has no argument 'title'; it has m"),
    ],
)
def test_the_line_names_the_argument_and_the_remedy(call: Any, said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_arguments_of_other_calls_are_passed_on() -> None:
    assert Serve(8, 2).users == Serve(users=2, context=8).users == 2
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'context'"):
        Serve()
    with pytest.raises(TypeError, match=r"Serve\(\) takes 8 arguments without a name; by name"):
        Serve(*range(9))


def test_signatures_stay() -> None:
    assert [*inspect.signature(fake_mode).parameters][:2] == ["fake_cuda", "fake_device"]
    assert [*inspect.signature(estimate).parameters][:3] == ["module", "inputs", "optimizer"]


PASSING_ON = {"fit", "search_layouts"}
"""Functions that pass unknown arguments on, which the cases above name."""


def test_every_function_with_options_refuses_unknown_ones() -> None:
    named = {name: getattr(torchfake, name) for name in torchfake.__all__ if name != "errors"}
    places = (torchfake.distributed, "plan_target"), (torchfake.distributed, "search_layouts")
    named |= {name: getattr(home, name) for home, name in places}
    functions = {name: each for name, each in named.items() if inspect.isfunction(each)}
    for name, each in functions.items():
        kinds = [p.kind for p in inspect.signature(each).parameters.values()]
        if inspect.Parameter.KEYWORD_ONLY in kinds and name not in PASSING_ON:
            with pytest.raises(TypeError, match=rf"{name}\(\) has no argument 'xyz_'"):
                each(xyz_=1)
