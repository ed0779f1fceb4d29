"""Where a step fits on no GPU: the plan to paste, as a command and as a call."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import CudaProfile, estimate, fake_mode, fit
from torchfake.inspect.memory.several_gpus import layout_for

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

Run = Callable[..., tuple[int, str, str]]

SIZES = {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 8, "vocab_size": 500}
OPTIONS = [word for pair in SIZES.items() for word in ("--config", "{}={}".format(*pair))]
SMALL_GPU = CudaProfile("Small", 4_000_000_000, 9, 0, 132, "made up")
OWN = """
from torch import nn
class Net(nn.Sequential):
    def __init__(self, layers=4):
        super().__init__(*(nn.Linear(8192, 8192) for _ in range(layers)))
"""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    Path("my gpus.toml").write_text(
        "[small]\ntotal_memory = 4000000000\n[smaller]\ntotal_memory = 3000000000\n"
    )
    Path("net.py").write_text(OWN)
    return ("--profiles", "my gpus.toml")


def pasted(run: Run, command: str) -> tuple[int, str, str]:
    name, *arguments = shlex.split(command)
    assert name == "torchfake"
    return run(*arguments)


def layers(number: int) -> nn.Sequential:
    with fake_mode():
        return nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(number)))


def next_commands(out: str) -> list[str]:
    lines = out.splitlines()
    (first,) = (i for i, line in enumerate(lines) if line.startswith("next "))
    last = next(i for i in range(first + 1, len(lines)) if not lines[i].startswith(" "))
    return [line.removeprefix("next").strip() for line in lines[first:last]]


@pytest.mark.parametrize(
    "arguments",
    [
        ("transformers:LlamaForCausalLM", *OPTIONS, "--optimizer", "adamw", "--seq", "32"),
        ("net.py:Net", "--input", "4,8192", "--optimizer", "sgd", "--autocast", "bf16"),
        ("net.py:Net", "-c", "layers=8", "--input", "x=3,8192", "--dtype", "bf16", "--train"),
    ],
)
def test_the_command_of_a_training_step_fits(
    run: Run, gpus: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    gpu = ("--gpu", "smaller") if "net.py:Net" in arguments else ()
    arguments = tuple(text.replace("x=", "input=") for text in arguments)
    code, out, err = run("fit", *arguments, "--vary", "none", *gpu, *gpus)
    assert (code, err) == (1, "")
    assert "; with checkpointing, or on several GPUs: see torchfake plan" in out.splitlines()[0]
    *adapters, command = next_commands(out)
    is_known = "transformers:LlamaForCausalLM" in arguments  # so that inputs are generated
    assert ["--train --lora 16 --weights nf4" in text for text in adapters] == [True] * is_known
    code, out, err = pasted(run, command)
    assert (code, err) == (0, ""), out
    assert out.splitlines()[0].split()[1].rstrip(":,") in ("yes", "tight")


def test_the_commands_of_inference(run: Run, gpus: tuple[str, ...]) -> None:
    """Smaller weights first, then other GPUs; no plan, which is for training."""
    target = ("net.py:Net", "-c", "layers=10", "--input", "2,8192", "--gpu", "smaller")
    code, out, _ = run("fit", *target, "--vary", "none", *gpus)
    assert code == 1
    smaller, others = next_commands(out)
    assert "--dtype bf16 --gpu smaller --profiles 'my gpus.toml'" in smaller
    assert pasted(run, smaller)[0] == 0
    assert "--gpu" not in others
    assert pasted(run, others)[0] == 0
    code, out, _ = run("fit", *target, "-c", "layers=30", "--dtype", "bf16", *gpus)
    assert code == 1
    command, _, needs = next_commands(out)[0].partition("  # ")
    assert "--weights int4 --gpu smaller" in command
    assert pasted(run, command)[0] == (2 if needs else 0)
    assert needs in ("", "needs torchao, and may not fit")


def test_the_call_in_python() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from torchfake import example_inputs

    with fake_mode():
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
    before = [(name, id(p), p.shape) for name, p in model.named_parameters()]
    step = estimate(model, example_inputs(model, seq=16, labels=True), optimizer="adamw")
    names: dict[str, Any] = {"model": model}
    assert evaluated(fit(step, SMALL_GPU), names).fits
    assert before == [(name, id(p), p.shape) for name, p in model.named_parameters()]

    own, inputs = layers(4), torch.empty(8, 8192)
    found = fit(estimate(own, inputs, optimizer="adamw"), SMALL_GPU, vary=None)
    assert evaluated(found, {"model": own, "inputs": inputs}).fits
    assert found.to_dict()["next"] == list(found.next_commands)
    assert fit(estimate(own, inputs), "t4").next_commands == ()


def test_the_calls_for_a_large_batch_fit() -> None:
    """The batch in micro-batches on one GPU, and on as many GPUs as it needs."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with fake_mode():
        model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=256, n_head=4, vocab_size=8192))
    step = estimate(model, batch=64, seq=512, mode="training", optimizer="sgd", autocast="bfloat16")
    found = fit(step, SMALL_GPU)
    smaller, *plan = next_commands(str(found))
    assert "batch=16, seq=512" in smaller  # 32 fit, but not beside gradients
    assert "accumulate=4" in smaller
    names = {"model": model, "fit": fit, "estimate": estimate, "gpu": SMALL_GPU}
    assert eval(smaller.replace('"Small"', "gpu"), names).fits
    exec(plan[0], names)
    assert eval(plan[1].replace('"Small"', "gpu"), names).fits


def evaluated(found: Any, names: dict[str, Any]) -> Any:
    """What the call gives that is shown, with profiles by name as the user has them."""
    imports, call = next_commands(str(found))
    exec(imports, names)
    return eval(call.replace('"Small"', "gpu"), {**names, "gpu": SMALL_GPU})


def test_how_many_are_enough() -> None:
    """For the states of training, and for the activations of a sample; checkpointed if large."""
    net = layers(8)
    found = estimate(net, torch.empty(8, 8192), optimizer="adamw", gpu="h100")
    numbers = {
        room: layout_for(found, "small", SMALL_GPU, room).num_gpus
        for room in (40 * 10**9, 10**10, 8 * 10**9, 10**6)
    }
    assert list(numbers.values()) == sorted(numbers.values())
    assert numbers[10**6] == 1 << 14
    x = torch.empty(80_000, 8192, device="meta")
    large = estimate(net, x, optimizer="adamw", gpu="h100")
    assert layout_for(large, "small", SMALL_GPU, 40 * 10**9).checkpoint == "none"  # of a sample


@pytest.mark.parametrize(("optimizer", "per_parameter"), [("sgd", 8), ("adamw", 20)])
def test_the_state_that_is_counted_is_that_of_the_optimizer(
    optimizer: str, per_parameter: int
) -> None:
    net = layers(8)
    found = estimate(net, torch.empty(8, 8192), optimizer=optimizer, gpu="h100")
    states = per_parameter * sum(p.numel() for p in net.parameters())
    gathered = 6 * 2 * 8193 * 8192  # two blocks
    room = int((states / 2 + gathered + 50 * 10**6) / 0.8)  # with the activations of 8 rows
    assert layout_for(found, "small", SMALL_GPU, room).num_gpus == 2
    assert layout_for(found, "small", SMALL_GPU, int(0.8 * room)).num_gpus == 4
