"""What people try first: each call is accepted, or its values are refused with what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchfake
import torchfake.distributed
import torchfake.fake
import torchfake.fx
import torchfake.inspect
from torchfake import (
    check,
    deferred_init,
    estimate,
    example_inputs,
    fake_mode,
    fit,
    is_fake,
    materialize_module,
    meta_like,
    summary,
)

transformers = pytest.importorskip("transformers")

NET = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
CONFIG = transformers.LlamaConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, vocab_size=50,
)  # fmt: skip
with fake_mode():
    LLAMA = transformers.LlamaForCausalLM(CONFIG)
INPUTS = example_inputs(LLAMA, batch=2, seq=8)


def in_fake_mode(program: Callable[[], Any]) -> Any:
    with fake_mode():
        return program()


def entered(mode: Any) -> None:
    with mode:
        pass


def called(function: Any, *args: Any) -> Any:
    """What a type checker would refuse."""
    return function(*args)


def large() -> torch.Tensor:
    return torch.randn(1 << 20)


ACCEPTED: dict[str, Callable[[], Any]] = {
    "summary, input_size": lambda: summary(NET, input_size=(2, 64)),
    "summary, several": lambda: summary(nn.Bilinear(3, 4, 5), input_size=[(2, 3), (2, 4)]),
    "summary, depth": lambda: summary(NET, depth=1),
    "summary, batch": lambda: summary(LLAMA, batch=2, seq=8),
    "estimate, batch": lambda: estimate(LLAMA, batch=8),
    "estimate, seq": lambda: estimate(LLAMA, seq=16, optimizer="adamw"),
    "estimate, input_size": lambda: estimate(NET, input_size=(2, 64), optimizer="sgd"),
    "estimate, class": lambda: estimate(LLAMA, INPUTS, optimizer=torch.optim.AdamW),
    "estimate, case": lambda: estimate(LLAMA, INPUTS, optimizer="AdamW"),
    "estimate, tensor": lambda: estimate(LLAMA, INPUTS["input_ids"]),
    "check, batch": lambda: check(LLAMA, batch=2),
    "check, input_size": lambda: check(NET, input_size=(2, 64)),
    "fit, a model": lambda: fit(LLAMA, "h100-80gb"),
    "fit, options": lambda: fit(LLAMA, "h100-80gb", batch=2, seq=8, optimizer="adamw", vary=None),
    "fit, input_size": lambda: fit(NET, "t4-16gb", input_size=(2, 64), vary=None),
    "fit, a list": lambda: fit(estimate(NET, input_size=(2, 64)), ["t4-16gb", "h100-80gb"]),
    "print": lambda: in_fake_mode(lambda: str(large())),
    "is_fake": lambda: is_fake(LLAMA),
    "meta_like, a module": lambda: meta_like(LLAMA),
    "outside": lambda: torch.ones(3) + in_fake_mode(lambda: torch.ones(3)),
    "already real": lambda: materialize_module(nn.Linear(3, 4)),
}

TAUGHT: dict[str, tuple[Callable[[], Any], str]] = {
    "summary, shape": (lambda: summary(NET, (2, 64)), "torch.empty(2, 64)"),
    "summary, name": (lambda: summary("transformers:GPT2Model"), "torchfake inspect transf"),
    "summary, class": (lambda: summary(transformers.LlamaModel), "create an instance"),
    "summary, config": (lambda: summary(CONFIG), "from_config(config)"),
    "estimate, alone": (lambda: estimate(LLAMA), "batch=1"),
    "estimate, shape": (lambda: estimate(NET, (2, 64)), "torch.empty(2, 64)"),
    "estimate, both": (lambda: estimate(LLAMA, INPUTS, batch=2), "give one of them"),
    "estimate, not made up": (lambda: estimate(NET, batch=2), "make them yourself"),
    "check, shape": (lambda: check(NET, (2, 64)), "must be Tensor, not tuple"),
    "fit, gpu": (lambda: fit(estimate(LLAMA, INPUTS), gpu="h100-80gb"), "fit(model, 'h100-80gb')"),
    "fit, inputs": (lambda: fit(LLAMA, INPUTS), "fit(estimate(model, inputs)"),
    "fit, options": (lambda: fit(estimate(LLAMA, INPUTS), batch=2), "with a model"),
    "mask": (lambda: in_fake_mode(lambda: large()[large() > 0]), "masked_fill"),
    "nonzero": (lambda: in_fake_mode(lambda: large().nonzero()), "torch.where"),
    "float": (lambda: in_fake_mode(lambda: float(large().sum())), "a Python number"),
    "numpy": (lambda: in_fake_mode(lambda: large().numpy()), "a small torch.tensor(...)"),
    "a module": (lambda: deferred_init(nn.Linear(3, 4)), "deferred_init(torch.nn.Linear, 3, 4)"),
    "not deferred": (lambda: materialize_module(LLAMA), "deferred_init()"),
    "plan": (lambda: torchfake.plan(LLAMA), "mesh_shape"),
    "check, nothing": (lambda: check(LLAMA), "batch=1"),
    "check, gpu": (lambda: summary(LLAMA, "h100"), "gpu="),
    "mode, a device": (lambda: fake_mode(fake_cuda="cuda:0"), "there is no such GPU"),
    "fit, a size": (lambda: fit(LLAMA, "40GB", batch=1), "there is no such GPU"),
    "a tensor": (lambda: materialize_module(large()), "materialize_tensor"),
    "estimate, needs inputs": (lambda: estimate(NET), "give its inputs after the module"),
    "check, needs inputs": (lambda: check(NET), "give its inputs after the module"),
    "example_inputs, name": (lambda: example_inputs("gpt2"), "or on the command line"),
    "example_inputs, config": (lambda: example_inputs(CONFIG), "from_config(config)"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_guess_that_works(name: str) -> None:
    assert str(ACCEPTED[name]())


@pytest.mark.parametrize("name", TAUGHT)
def test_a_guess_that_is_answered(name: str) -> None:
    guess, remedy = TAUGHT[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        guess()
    assert remedy in str(caught.value)


def test_fields_that_are_elsewhere() -> None:
    with pytest.raises(AttributeError, match=r"peak_memory.*it has .*peak_bytes"):
        estimate(NET, input_size=(2, 64)).peak_memory  # noqa: B018


@pytest.mark.parametrize(
    "message", ["Torch not compiled with CUDA enabled", "Found no NVIDIA driver on your system"]
)
def test_missing_devices(message: str) -> None:
    """As torch's error, with the way to fakes: by a build without CUDA, and one without a GPU."""
    error = AssertionError if "compiled" in message else RuntimeError
    with pytest.raises(error) as caught, fake_mode(), fake_mode():
        raise error(message)
    assert str(caught.value).endswith("torchfake.fake_mode(fake_cuda=True)")
    assert str(caught.value).count("fake_mode") == 1
    with pytest.raises(error) as caught, fake_mode():
        raise error("another")
    assert str(caught.value) == "another"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_in_a_mode_without_fake_devices() -> None:
    for program in (lambda: torch.ones(3).cuda(), lambda: torch.ones(3, device="cuda")):
        with pytest.raises((AssertionError, RuntimeError), match="fake_cuda=True"):
            in_fake_mode(program)


def test_depth_and_sizes_are_followed() -> None:
    assert "(mlp)" not in str(summary(LLAMA, depth=1))
    assert "(mlp)" not in summary(LLAMA, depth=1)._repr_html_()
    assert summary(NET, input_size=(2, 64)).outputs[""].shape == (2, 4)
    assert (
        estimate(LLAMA, batch=3, seq=5, optimizer="sgd").peak_bytes
        == (
            estimate(LLAMA, example_inputs(LLAMA, batch=3, seq=5, labels=True), optimizer="sgd")
        ).peak_bytes
    )
