"""What an estimate leaves out is named; modules that replicate others are run alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from torchfake import estimate, fake_like
from torchfake._tensor.copies import OnOneDevice

COMPILED = "torch.compile: run eagerly, without a compiler's fusion and memory reuse"


compiled = partial(torch.compile, backend="eager")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


def test_nothing() -> None:
    found = estimate(net(), torch.ones(2, 8), optimizer="sgd")
    assert found.left_out == ()
    assert "left out" not in repr(found)
    assert "left_out" not in found.to_dict()


class Denoiser(nn.Linear):
    """What library_of takes for a model of diffusers."""

    config = {"sample_size": 8}  # noqa: RUF012

    def forward(self, sample: torch.Tensor, timestep: int = 500) -> torch.Tensor:
        return super().forward(sample) * timestep


@pytest.mark.parametrize(
    ("name", "module", "denoises"),
    [
        ("UNet", "diffusers.models.unets.unet", True),
        ("ControlNetModel", "diffusers.models.controlnets.controlnet", False),
        ("Denoiser", "net", False),
    ],
)
def test_of_a_pipeline_one_denoising_step_is_run(name: str, module: str, denoises: bool) -> None:
    own = type(name, (Denoiser,), {"__module__": module})(8, 8)
    found = estimate(own, torch.ones(2, 8), gpu="t4-16gb")
    line = "all else that the pipeline runs: text encoders, an autoencoder"
    assert found.left_out == ((f"{line}, the other denoising steps",) if denoises else ())
    assert ("; inference of one denoising step in fp32, batch 2" in str(found)) == denoises
    found = estimate(own, torch.ones(2, 8), optimizer="sgd", gpu="t4-16gb")
    assert found.left_out == ((line,) if denoises else ())
    assert "step of" not in str(found).splitlines()[0]


def compiled_inside() -> nn.Module:
    module = net()
    module[0] = compiled(module[0])
    return module


def compiled_in_place() -> nn.Module:
    module = net()
    module.compile(backend="eager")
    return module


class OfCompiledFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.function = compiled(lambda x: x.relu() * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    "make", [lambda: compiled(net()), compiled_inside, compiled_in_place, OfCompiledFunction]
)
def test_compiled_modules(make: Any) -> None:
    assert estimate(make(), torch.ones(2, 8), optimizer="sgd").left_out == (COMPILED,)


def test_compiled_steps() -> None:
    module, x = net(), torch.ones(2, 8)

    @compiled
    def step() -> torch.Tensor:
        return module(x)

    assert estimate(step).left_out == (COMPILED,)


def test_hooks_that_are_not_copied() -> None:
    module, x = net(), torch.ones(2, 8)
    optimizer = torch.optim.SGD(module.parameters())
    optimizer.register_step_pre_hook(lambda *_: None)
    module[0].weight.register_hook(lambda gradient: gradient)
    module[2].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    assert estimate(module, x, optimizer=optimizer).left_out == (
        "hooks of parameters (2): not run; in a step that is a function of yours they are",
        "hooks of the optimizer: not run; in a step that is a function of yours they are",
    )

    def step() -> None:
        module(x).sum().backward()
        optimizer.step()

    assert estimate(step).left_out == ()


def test_kernels() -> None:
    images = torch.ones(1, 3, 8, 8)
    found = estimate(nn.Conv2d(3, 4, 3), images, gpu="t4-16gb")
    assert found.left_out == ("convolutions: the workspaces that cuDNN takes while they run",)
    (line,) = estimate(nn.LSTM(8, 8), torch.ones(4, 2, 8)).left_out
    assert line.startswith("recurrent layers on the CPU")
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, batch_first=True), 1, enable_nested_tensor=False
    )
    (line,) = estimate(encoder, torch.ones(1, 4, 8)).left_out
    assert line == "nn.TransformerEncoder without gradients: run without its fast path"


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_distributed_data_parallel() -> None:
    module, x = net(), torch.ones(2, 8)
    replica = nn.parallel.DistributedDataParallel(module)
    found = estimate(replica, x, optimizer="sgd")
    assert found.peak_bytes == estimate(module, x, optimizer="sgd").peak_bytes
    (line,) = found.left_out
    assert line == "DistributedDataParallel: its buckets, 576 B, and its messages are not counted"

    def step() -> None:
        with replica.no_sync():
            replica(x).sum().backward()

    assert estimate(step).left_out == (line,)
    copied = fake_like(replica)
    assert isinstance(copied, OnOneDevice)
    copied(fake_like(x)).sum().backward()
    assert all(p.grad is not None for p in copied.parameters())
    assert module[0].weight.grad is None


def test_data_parallel() -> None:
    replicated = nn.DataParallel(net())
    replicated.device_ids = [0, 1]  # as on a machine with two GPUs
    found = estimate(replicated, torch.ones(2, 8), gpu="t4-16gb")
    assert found.left_out == (
        "DataParallel: run on one device, with the whole batch; replicas are not counted",
    )


class Compiling(torch.optim.SGD):
    """Compiles what it does in a step, as torchao's optimizers of few bits do."""

    def step(self, closure: Any = None) -> Any:
        run = super().step
        return (run if closure is None else torch.compile(run))(closure)


@pytest.mark.parametrize("optimizer", [Compiling, partial(Compiling, lr=0.1)])
def test_an_optimizer_that_compiles_its_step(optimizer: Any) -> None:
    found = estimate(nn.Linear(3, 4), torch.ones(2, 3), optimizer=optimizer)
    assert found.left_out == (
        "Compiling compiles its step: run operator by operator, which takes longer",
    )
    assert estimate(nn.Linear(3, 4), torch.ones(2, 3), optimizer="sgd").left_out == ()


def test_an_optimizer_made_by_a_function() -> None:
    found = estimate(
        nn.Linear(3, 4), torch.ones(2, 3), optimizer=lambda p: torch.optim.AdamW(p, lr=0.1)
    )
    assert found.left_out == ()
