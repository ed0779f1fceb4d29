"""A public function that is given a wrong argument names it in the error, and changes nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchfake
from torchfake import deferred_init, deferred_mode, errors, fake_like, fake_mode, fx, is_deferred
from torchfake.distributed import search_servers

WRONG: list[Any] = ["no such", 3.5, object(), [], torch.int32, lambda: 1, -1]


def layer() -> nn.Module:
    return deferred_init(nn.Linear, 3, 4)


def tensor() -> torch.Tensor:
    return layer().weight  # type: ignore[return-value]


CALLS: dict[str, tuple[Callable[[], Any], Callable[..., Any], dict[str, list[Any]]]] = {
    "materialize_module": (
        layer,
        torchfake.materialize_module,
        {
            "buffers_only": [*WRONG, None, 1],
            "check_fn": [w for w in WRONG if w is not None],
            "device": [*WRONG, "meta", True, "cuda:99"],
            "dtype": [*WRONG, 1, torch.bool],
            "checkpoint": WRONG,
            "strict": [*WRONG, None, 0],
            "threads": [*WRONG, 0, True],
            "progress": [*WRONG, 1],
        },
    ),
    "materialize_tensor": (
        tensor,
        torchfake.materialize_tensor,
        {"device": [*WRONG, "meta", torch.device("meta"), "cuda:99"], "dtype": [*WRONG, 1]},
    ),
    "materialize": (layer, torchfake.materialize, {"keep_cache": [*WRONG, None, 1]}),
    "dematerialize_module": (layer, torchfake.dematerialize_module, {"check_fn": WRONG}),
    "save_materialized": (
        layer,
        torchfake.save_materialized,
        {
            "directory": [3.5, None, object(), b"x", ""],
            "max_shard_size": [*WRONG, "0", None],
            "threads": [*WRONG, 0],
            "progress": [*WRONG, 1],
        },
    ),
    "fake_like": (
        lambda: torch.ones(2),
        fake_like,
        {"device": [3.5, object(), [], "no such", True, torch.int32, -1]},
    ),
}

CASES = [
    pytest.param(call, name, wrong, id=f"{call}-{name}-{i}")
    for call, (_, _, wrongs) in CALLS.items()
    for name, values in wrongs.items()
    for i, wrong in enumerate(values)
]


@pytest.mark.parametrize(("call", "name", "wrong"), CASES)
def test_the_argument_is_named(call: str, name: str, wrong: Any, tmp_path: Path) -> None:
    make, function, _ = CALLS[call]
    target = make()
    arguments: dict[str, Any] = {name: wrong}
    if call == "save_materialized":
        arguments = {"directory": tmp_path / "out", **arguments}
    with pytest.raises((TypeError, ValueError), match=rf"^{name} is "):
        function(target, **arguments)
    assert not isinstance(target, nn.Module) or is_deferred(target)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "function",
    [torchfake.materialize_module, torchfake.dematerialize_module, torchfake.materialize_tensor,
     torchfake.materialize, torchfake.is_deferred, torchfake.graph],
)  # fmt: skip
@pytest.mark.parametrize("wrong", [None, 3, "Linear", nn.Linear, object()])
def test_what_is_no_module_or_tensor(function: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(errors.NotDeferredError, match=rf"^{function.__name__} takes a "):
        function(wrong)


INPUTS = fake_like(torch.ones(2, 3))
INSPECTING: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "gpu": (torchfake.summary, ["no such", 3.5, [], -1]),
    "backward": (torchfake.check, ["no", 1, None]),
    "autocast": (torchfake.estimate, [3.5, torch.int32, [], -1]),
    "optimizer": (torchfake.estimate, ["no such", 3]),
    "fake_cuda": (lambda *_, fake_cuda: fake_mode(fake_cuda=fake_cuda), ["no such", -1]),
}


@pytest.mark.parametrize("name", INSPECTING)
def test_arguments_of_inspection_are_named(name: str) -> None:
    function, wrongs = INSPECTING[name]
    for wrong in wrongs:
        with pytest.raises((TypeError, ValueError), match=name):
            function(nn.Linear(3, 4), INPUTS, **{name: wrong})


@pytest.mark.parametrize("name", ["overrides_a", "overrides_b", "dtype"])
def test_arguments_of_diff_are_named(name: str) -> None:
    for wrong in (3.5, object(), -1, torch.int32):
        with pytest.raises(TypeError, match=rf"^{name} is "):
            torchfake.diff(nn.Linear(1, 1), nn.Linear(1, 1), **{name: wrong})


def test_meta_keeps_the_record() -> None:
    """Materializing on ``meta``, where tensors have no values, is refused, and nothing is lost."""
    module = layer()
    with pytest.raises(errors.DeviceError, match="its record would be lost"):
        torchfake.materialize_module(module, device="meta")
    assert is_deferred(module)
    torchfake.materialize_module(module)
    assert module.weight.device.type == "cpu"


def test_a_device_that_only_a_mode_has() -> None:
    module = layer()
    if torch.cuda.is_available():
        pytest.skip("it is there")
    with (
        deferred_mode(fake_cuda=True),
        pytest.raises(errors.DeviceError, match=r"^device is 'cuda"),
    ):
        torchfake.materialize_module(module, device="cuda")


def test_device_and_dtype_of_a_tensor() -> None:
    torch.manual_seed(0)
    expected = nn.Linear(3, 4).weight.detach().to(torch.bfloat16)
    torch.manual_seed(0)
    weight = tensor()
    made = torchfake.materialize_tensor(weight, device="cpu", dtype=torch.bfloat16)
    assert made is weight
    assert torch.equal(made, expected)
    with deferred_mode(fake_cuda=True):
        there = torch.ones(3, device="cuda")
        count = torch.arange(3)
    assert torchfake.materialize_tensor(there, device="cpu").device.type == "cpu"
    assert torchfake.materialize_tensor(count, dtype=torch.float64).dtype is torch.int64


# Every argument by name of every public function, with values of all kinds.

VALUES: list[Any] = [
    -1, 0, 1 << 100, 3.5, float("nan"), True, "no such", b"x", (), {3: 4}, object(), torch.int32,
]  # fmt: skip

ACCEPTED: dict[str, tuple[Any, ...]] = {
    "device": (0, "no such"), "fake_cuda": (0, True), "backward": (True,), "labels": (True,),
    "strict": (True,), "decompose": (True, {3: 4}), "autocast": (True,), "reserved_bytes": (0,),
    "depth": (0,), "unlike_axes": ((),), "workspace_bytes": (0,), "mesh_dim_names": ("no such",),
    "keep_cache": (True,), "keep_gradients": (True,), "fold": (True,),
    "buffers_only": (True,), "progress": (True,), "overrides_a": ((),), "overrides_b": ((),),
    "overrides": ((),), "suggests": (True,), "ttft": (1 << 100, 3.5), "tpot": (1 << 100, 3.5),
    "inputs": ((), {3: 4}), "dynamic_shapes": ((), {3: 4}), "concrete_args": ({3: 4},),
    "decomposition_table": ({3: 4},), "kwargs": ({3: 4},), "checkpoint": ({3: 4}, "no such"),
    "a": ("no such",), "b": ("no such",), "directory": ("no such",), "path": ("no such",),
}  # fmt: skip
"""By argument name, the values to skip: those allowed, or refused by another kind of error."""


def linear() -> nn.Module:
    return nn.Linear(3, 4)


@cache
def estimated() -> Any:
    return torchfake.estimate(linear(), INPUTS)


def plan(**wrong: Any) -> None:
    given = {"mesh_shape": (2,), "inputs": INPUTS, **wrong}
    torchfake.plan(wrong.pop("module_fn", linear), **given)


def example_inputs(**wrong: Any) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with fake_mode():
        model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2))
    torchfake.example_inputs(model, **wrong)


LLAMA = {"overrides": ["hidden_size=32", "num_hidden_layers=1", "vocab_size=64"], "context": 64}


def served(**wrong: Any) -> None:
    given = {**LLAMA, **wrong}
    torchfake.serve(given.pop("target", "transformers:LlamaForCausalLM"), **given)


def searched(**wrong: Any) -> None:
    given = {**LLAMA, "gpus": 1, "gpu": "t4-16gb", **wrong}
    search_servers(given.pop("target", "transformers:LlamaForCausalLM"), **given)


SWEPT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "summary": (torchfake.summary, lambda **w: torchfake.summary(linear(), INPUTS, **w)),
    "graph_of": (torchfake.graph_of, lambda **w: torchfake.graph_of(linear(), INPUTS, **w)),
    "check": (torchfake.check, lambda **w: torchfake.check(linear(), INPUTS, **w)),
    "estimate": (torchfake.estimate, lambda **w: torchfake.estimate(linear(), INPUTS, **w)),
    "fit": (torchfake.fit, lambda **w: torchfake.fit(estimated(), "t4-16gb", **w)),
    "diff": (torchfake.diff, lambda **w: torchfake.diff(**{"a": linear(), "b": linear(), **w})),
    "example_inputs": (torchfake.example_inputs, example_inputs),
    "plan": (torchfake.plan, plan),
    "serve": (torchfake.serve, served),
    "search_servers": (search_servers, searched),
    "fake_mode": (fake_mode, fake_mode),
    "deferred_mode": (deferred_mode, deferred_mode),
    "meta_init": (torchfake.meta_init, torchfake.meta_init),
    "answering": (torchfake.answering, torchfake.answering),
    "fake_like": (fake_like, lambda **w: fake_like(linear(), **w)),
    "symbolic_trace": (fx.symbolic_trace, lambda **w: fx.symbolic_trace(linear(), **w)),
    "make_fx": (fx.make_fx, lambda **w: fx.make_fx(linear(), INPUTS, **w)),
    "export": (fx.export, lambda **w: fx.export(linear(), **{"args": (INPUTS,), **w})),
}

SUBJECTS = ("module", "model", "real", "root", "function", "mod", "args", "estimate")
"""First arguments, which the sweep skips: their errors say what the function takes."""


@pytest.mark.parametrize("call", SWEPT)
def test_every_argument_by_name(call: str) -> None:
    function, run = SWEPT[call]
    unnamed = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in SUBJECTS:
            continue
        for value in VALUES:
            if any(type(value) is type(v) and value == v for v in ACCEPTED.get(name, ())):
                continue
            try:
                run(**{name: value})
            except (TypeError, ValueError, RuntimeError) as error:
                if re.search(rf"\b{name}\b", str(error)) is None:
                    unnamed.append(f"{name}={value!r}: {error}")
            else:
                unnamed.append(f"{name}={value!r} is accepted")
    assert not unnamed


def test_the_sweep_knows_all_public_functions() -> None:
    """Every public function with keyword arguments is swept, or is tested above."""
    elsewhere = {"materialize_module", "materialize_tensor", "materialize", "dematerialize_module",
                 "save_materialized"}  # fmt: skip
    subject_only = {"deferred_init", "is_deferred", "is_fake", "graph", "meta_like", "report",
                    "read_profiles", "profiles", "install_as_torchdistx", "is_meta_init",
                    "clear_meta_init_cache"}  # fmt: skip
    no_functions = {"Answer", "Answers", "CudaProfile", "FakeTensor", "Question", "Serve", "errors"}
    names = {*torchfake.__all__, *fx.__all__} - {"MetaAwareMethodsPatcher"} | {"search_servers"}
    assert names - elsewhere - subject_only - no_functions == set(SWEPT)
