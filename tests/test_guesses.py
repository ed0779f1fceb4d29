"""What people try first: each call is accepted, or answered with the call that is right."""

from __future__ import annotations

import importlib
import inspect
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
    Serve,
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
from torchfake.distributed import Strategy, plan_target

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
    "outside": lambda: torch.ones(3) + in_fake_mode(lambda: torch.ones(3)),
    "already real": lambda: materialize_module(nn.Linear(3, 4)),
}

TAUGHT: dict[str, tuple[Callable[[], Any], str]] = {
    "summary, shape": (lambda: summary(NET, (2, 64)), "torch.empty(2, 64)"),
    "summary, verbose": (lambda: summary(NET, verbose=0), "print(summary(...))"),
    "summary, input_data": (lambda: summary(LLAMA, input_data=INPUTS), "(module, inputs)"),
    "summary, batch_size": (lambda: summary(LLAMA, batch_size=2), "batch="),
    "summary, name": (lambda: summary("transformers:GPT2Model"), "torchfake inspect transf"),
    "summary, class": (lambda: summary(transformers.LlamaModel), "create an instance"),
    "summary, config": (lambda: summary(CONFIG), "from_config(config)"),
    "estimate, alone": (lambda: estimate(LLAMA), "batch=1"),
    "estimate, shape": (lambda: estimate(NET, (2, 64)), "torch.empty(2, 64)"),
    "estimate, batch_size": (lambda: estimate(LLAMA, batch_size=8), "batch="),
    "estimate, seq_len": (lambda: estimate(LLAMA, seq_len=8), "seq="),
    "estimate, dtype": (lambda: estimate(LLAMA, INPUTS, dtype=torch.half), "autocast="),
    "estimate, train": (lambda: estimate(LLAMA, INPUTS, train=True), 'mode="training"'),
    "estimate, by name": (lambda: estimate(LLAMA, **INPUTS), "as one mapping"),
    "estimate, both": (lambda: estimate(LLAMA, INPUTS, batch=2), "give one of them"),
    "estimate, not made up": (lambda: estimate(NET, batch=2), "make them yourself"),
    "check, shape": (lambda: check(NET, (2, 64)), "must be Tensor, not tuple"),
    "example_inputs, batch_size": (lambda: example_inputs(LLAMA, batch_size=2), "batch="),
    "example_inputs, seq_len": (lambda: example_inputs(LLAMA, seq_len=2), "seq="),
    "fit, gpu": (lambda: fit(estimate(LLAMA, INPUTS), gpu="h100-80gb"), "'h100-80gb')"),
    "fit, inputs": (lambda: fit(LLAMA, INPUTS), "fit(estimate(llama"),
    "fit, batch_size": (lambda: fit(LLAMA, batch_size=2), "batch="),
    "fit, options": (lambda: fit(estimate(LLAMA, INPUTS), batch=2), "with a model"),
    "mode, device": (lambda: fake_mode(device="cuda"), "fake_cuda=True"),
    "mode, positional": (lambda: fake_mode("cuda"), "fake_cuda=True"),
    "mode, cuda": (lambda: fake_mode(cuda=True), "fake_cuda=True"),
    "mode, gpu": (lambda: fake_mode(gpu="h100-80gb"), "fake_cuda=True"),
    "mask": (lambda: in_fake_mode(lambda: large()[large() > 0]), "masked_fill"),
    "nonzero": (lambda: in_fake_mode(lambda: large().nonzero()), "torch.where"),
    "float": (lambda: in_fake_mode(lambda: float(large().sum())), "a Python number"),
    "numpy": (lambda: in_fake_mode(lambda: large().numpy()), "a small torch.tensor(...)"),
    "a module": (lambda: deferred_init(nn.Linear(3, 4)), "deferred_init(torch.nn.Linear, 3, 4)"),
    "not deferred": (lambda: materialize_module(LLAMA), "deferred_init()"),
    "meta_like": (lambda: meta_like(LLAMA), "takes a fake tensor"),
    "plan": (lambda: torchfake.plan(LLAMA), "mesh_shape"),
    "plan, gpus": (lambda: torchfake.plan(LLAMA, gpus=8), "plan_target(TARGET, gpus=8)"),
    "check, nothing": (lambda: check(LLAMA), "batch=1"),
    "check, gpu": (lambda: summary(LLAMA, "h100"), "gpu="),
    "estimate, checkpointing": (lambda: estimate(LLAMA, checkpointing=True), "_enable()"),
    "mode, dtype": (lambda: fake_mode(dtype=torch.half), "set_default_dtype"),
    "mode, a device": (lambda: fake_mode(fake_cuda="cuda:0"), "is a device, not a GPU"),
    "fit, a size": (lambda: fit(LLAMA, "40GB", batch=1), "is a size"),
    "a tensor": (lambda: materialize_module(large()), "materialize_tensor"),
    "mode, class": (lambda: entered(fake_mode), "write `with fake_mode():`"),
    "mode, function": (lambda: fake_mode(large), "as a decorator, @fake_mode()"),
    "deferred_mode, seed": (lambda: torchfake.deferred_mode(seed=0), "deferred_mode has no seed="),
    "meta_init, class": (lambda: torchfake.meta_init(nn.ReLU), "write `with meta_init(): ..."),
    "mode, FakeTensorMode": (
        lambda: fake_mode(allow_non_fake_inputs=True),
        "real and fake tensors can be mixed",
    ),
    "module, fake": (lambda: called(torchfake.fake, NET), "write torchfake.fake_like(x)"),
    "module, inspect": (
        lambda: called(torchfake.inspect, NET),
        "write torchfake.summary(",
    ),
    "profiles, name": (lambda: called(torchfake.profiles, "h100"), 'profiles()["h100-80gb"]'),
    "Serve, batch": (lambda: Serve(batch=4), "Serve has no batch=: write users="),
    "Serve, vLLM": (lambda: Serve(max_model_len=4096), "write context="),
    "Serve, tp": (lambda: Serve(tensor_parallel_size=2), "served on one GPU"),
    "Serve, nothing": (lambda: Serve(), "Serve needs context: write Serve(context, ...)"),
    "Strategy, tp": (lambda: Strategy(tp=2), "write mesh={'dp': 4, 'tp': 2}"),
    "Strategy, zero": (lambda: Strategy(zero_stage=3), "write zero="),
    "plan_target, gpus": (lambda: plan_target("x", num_gpus=8), "write gpus="),
    "plan_target, tp": (lambda: plan_target("x", gpus=8, tensor_parallel_size=2), "mesh={'dp'"),
    "materialize, seed": (lambda: materialize_module(NET, seed=0), "torch.manual_seed(...)"),
    "materialize, buffers": (lambda: materialize_module(NET, buffers=True), "write buffers_only="),
    "fake_like, dtype": (lambda: torchfake.fake_like(NET, dtype=torch.half), ".to(torch.bfloat16)"),
    "estimate, optim": (lambda: estimate(LLAMA, INPUTS, optim="adamw"), "write optimizer="),
    "estimate, misspelt": (lambda: estimate(LLAMA, INPUTS, optmizer="sgd"), "did you mean optimi"),
    "estimate, needs inputs": (lambda: estimate(NET), "give its inputs after the module"),
    "check, needs inputs": (lambda: check(NET), "give its inputs after the module"),
    "example_inputs, name": (lambda: example_inputs("gpt2"), "build it first"),
    "answering, nothing": (lambda: torchfake.answering(), "write answering(answer)"),
    "CudaProfile, part": (lambda: torchfake.CudaProfile("mine", 80), "CudaProfile needs major, "),
    "read_profiles, two": (lambda: torchfake.read_profiles("a", "b"), "write read_profiles(path)"),
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


NAMES = {
    "torchfake.Strategy": "write torchfake.distributed.Strategy",
    "torchfake.FakeMode": "write torchfake.fake_mode()",
    "torchfake.FakeTensorMode": "write torchfake.fake_mode()",
    "torchfake.to_fake": "write torchfake.fake_like(x)",
    "torchfake.init_empty_weights": "write torchfake.fake_mode(), or torchfake.deferred_init(",
    "torchfake.load_checkpoint_and_dispatch": "write torchfake.materialize_module(",
    "torchfake.estimate_memory": "write torchfake.estimate(module, inputs)",
    "torchfake.FlopCountAnalysis": "write torchfake.summary(module, inputs)",
    "torchfake.defered_init": "did you mean torchfake.deferred_init?",
    "torchfake.Fake_Mode": "did you mean torchfake.fake_mode",
    "torchfake.nothing_like_it": "all names are in https://",
    "torchfake.inspect.memory_estimate": "did you mean torchfake.inspect.estimate?",
    "torchfake.distributed.fake_mode": "did you mean torchfake.fake_mode",
    "torchfake.fx.symbolic_tracer": "did you mean torchfake.fx.symbolic_trace?",
    "torchfake.deferred.materialise_module": "did you mean torchfake.materialize_module",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_elsewhere(name: str) -> None:
    home, _, guess = name.rpartition(".")
    module = importlib.import_module(home)
    assert not hasattr(module, guess)
    with pytest.raises(AttributeError) as caught:
        getattr(module, guess)
    assert NAMES[name] in str(caught.value)
    with pytest.raises(ImportError) as refused:
        exec(f"from {home} import {guess}")
    assert NAMES[name] in str(refused.value)


def test_fields_that_are_elsewhere() -> None:
    with pytest.raises(AttributeError, match=r"write torchfake\.fake_like\(x\)"):
        fake_mode().from_tensor  # noqa: B018
    with pytest.raises(AttributeError, match=r"peak_memory.*it has .*peak_bytes"):
        estimate(NET, input_size=(2, 64)).peak_memory  # noqa: B018


MADE_BY_USERS = {"Serve", "Strategy", "Links", "CudaProfile"}
MADE_BY_USERS |= {"fake_mode", "deferred_mode", "meta_init"}
PASS_ON = {
    "fit",
    "report",
    "search_layouts",
    "deferred_init",
    "make_fx",
    "symbolic_trace",
    "export",
}
"""What has arguments of other functions beside its own, and refuses those that none of them has."""

PUBLIC = sorted(
    f"{module.__name__}.{name}"
    for module in (torchfake, torchfake.inspect, torchfake.distributed, torchfake.fx)
    for name in module.__all__
    if inspect.isfunction(getattr(module, name)) or name in MADE_BY_USERS
    if name not in PASS_ON | {"is_fake"}  # is_fake may be called for each operation of a model
)


@pytest.mark.parametrize("name", PUBLIC)
def test_an_unknown_keyword_of_any_public_call(name: str) -> None:
    home, _, own = name.rpartition(".")
    function = getattr(importlib.import_module(home), own)
    with pytest.raises(TypeError, match=r"^\w+ has no not_there=") as caught:
        function(not_there=1)
    assert "\n" not in str(caught.value)
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds  # the signature is what was written


def test_errors_from_within_a_call_are_left_as_they_are() -> None:
    def build(not_there: int) -> nn.Module:
        return nn.Linear(not_there, "wide")  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="missing 1 required positional") as caught:
        deferred_init(build)
    assert not isinstance(caught.value, TypeError)


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
