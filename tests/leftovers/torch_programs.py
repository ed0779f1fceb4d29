"""Programs of torch itself: layers, optimizers, schedulers, distributions, transforms, scripts."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

Program = Callable[[], Any]


def train(make: Callable[..., Any], *args: Any) -> Any:
    """Three steps of a small network."""
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2))
    optimizer = make(network.parameters(), *args)
    schedulers = torch.optim.lr_scheduler
    scheduler = schedulers.OneCycleLR(optimizer, 0.1, 10, cycle_momentum=False)
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(torch.randn(6, 4)), torch.tensor([0, 1] * 3))
        loss.backward()
        if make is torch.optim.LBFGS:
            return loss
        optimizer.step()
        scheduler.step()
    return [*network.parameters(), loss]


def optimizers() -> Iterator[tuple[str, Program]]:
    names = (
        "SGD",
        "Adam",
        "AdamW",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "NAdam",
        "RAdam",
        "Adafactor",
    )
    for name in (*names, "Rprop", "ASGD", "Adamax", "Muon"):
        make = getattr(torch.optim, name, None)
        if make is not None and name != "Muon":
            yield f"optim.{name}", partial(train, make)


def layer(make: Callable[[], nn.Module], *sizes: tuple[int, ...]) -> Any:
    module = make()
    found = module(*(torch.randn(size, requires_grad=True) for size in sizes))
    first = found[0] if isinstance(found, tuple) else found
    first.sum().backward()
    return first, list(module.parameters())


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "Linear": (lambda: nn.Linear(4, 3), ((2, 4),)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), ((2, 3, 8, 8),)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 3), ((2, 3, 8, 8),)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), ((2, 3, 8, 8),)),
    "GroupNorm": (lambda: nn.GroupNorm(3, 6), ((2, 6, 8),)),
    "LayerNorm": (lambda: nn.LayerNorm(4), ((2, 4),)),
    "RMSNorm": (lambda: nn.RMSNorm(4), ((2, 4),)),
    "LSTM": (lambda: nn.LSTM(4, 5, 2), ((3, 2, 4),)),
    "GRU": (lambda: nn.GRU(4, 5, bidirectional=True), ((3, 2, 4),)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2), ((3, 2, 8),) * 3),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2), ((3, 2, 8),)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2), ((3, 2, 8),) * 2),
    "Upsample": (lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"), ((1, 2, 4, 4),)),
    "Bilinear": (lambda: nn.Bilinear(3, 4, 5), ((2, 3), (2, 4))),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), ((2, 4),)),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), ((2, 4),)),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), ((2, 4),)),
}

DISTRIBUTIONS: dict[str, Callable[[], torch.distributions.Distribution]] = {
    "Normal": lambda: torch.distributions.Normal(torch.zeros(3), torch.ones(3)),
    "Categorical": lambda: torch.distributions.Categorical(logits=torch.zeros(3)),
    "Bernoulli": lambda: torch.distributions.Bernoulli(torch.full((3,), 0.5)),
    "Beta": lambda: torch.distributions.Beta(torch.ones(3), torch.ones(3)),
    "Dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(3)),
    "Gamma": lambda: torch.distributions.Gamma(torch.ones(3), torch.ones(3)),
    "Poisson": lambda: torch.distributions.Poisson(torch.ones(3)),
    "StudentT": lambda: torch.distributions.StudentT(torch.full((3,), 4.0)),
    "VonMises": lambda: torch.distributions.VonMises(torch.zeros(3), torch.ones(3)),
    "MultivariateNormal": lambda: torch.distributions.MultivariateNormal(
        torch.zeros(3), torch.eye(3)
    ),
    "LKJCholesky": lambda: torch.distributions.LKJCholesky(3, 1.0),
    "TransformedDistribution": lambda: torch.distributions.LogNormal(torch.zeros(3), torch.ones(3)),
}


def sample(make: Callable[[], torch.distributions.Distribution]) -> Any:
    distribution = make()
    value = distribution.sample()
    kept = torch.distributions.kl_divergence(distribution, distribution) if _has_kl(make) else value
    return value, kept


_real = {name: make() for name, make in DISTRIBUTIONS.items()}
_real_layers = {
    name: make() for name, (make, _) in LAYERS.items() if name.endswith(("_norm", "orthogonal"))
}


def sample_real(distribution: torch.distributions.Distribution) -> Any:
    """Of a distribution that was made outside of modes, samples and all that it computes once."""
    lazy = torch.distributions.utils.lazy_property
    names = [n for n in dir(type(distribution)) if _is_lazy(type(distribution), n, lazy)]
    return distribution.sample(), [getattr(distribution, name) for name in names]


def _is_lazy(cls: type, name: str, lazy: type) -> bool:
    return isinstance(inspect.getattr_static(cls, name), lazy)


def call_real(module: nn.Module) -> Any:
    """A layer that was made outside of modes, evaluated: its weight is computed at each use."""
    return module.eval()(torch.randn(2, 4))


def _has_kl(make: Any) -> bool:
    return make in (DISTRIBUTIONS["Normal"], DISTRIBUTIONS["Categorical"], DISTRIBUTIONS["Gamma"])


FUNCTIONS: dict[str, Program] = {
    "fft": lambda: torch.fft.irfft(torch.fft.rfft(torch.randn(8))),
    "fftfreq": lambda: torch.fft.fftshift(torch.fft.fftfreq(8)),
    "stft": lambda: torch.stft(
        torch.randn(64), 16, window=torch.hann_window(16), return_complex=True
    ),
    "windows": lambda: torch.signal.windows.kaiser(8),
    "func.grad": lambda: torch.func.grad(lambda x: (x.sin() ** 2).sum())(torch.randn(3)),
    "func.vmap": lambda: torch.func.vmap(lambda x: x @ torch.eye(3))(torch.randn(4, 3)),
    "func.jacfwd": lambda: torch.func.jacfwd(nn.functional.logsigmoid)(torch.randn(3)),
    "jvp_of_layer_norm": lambda: torch.func.jvp(
        lambda x: nn.functional.layer_norm(x, (4,)), (torch.randn(2, 4),), (torch.randn(2, 4),)
    ),
    "checkpoint": lambda: torch.utils.checkpoint.checkpoint(
        torch.sin, torch.randn(3, requires_grad=True), use_reentrant=False
    ),
    "autocast": lambda: _autocast(),
    "compile": lambda: torch.compile(lambda x: x + torch.arange(4), backend="eager")(torch.ones(4)),
    "linalg": lambda: (torch.linalg.svd(torch.eye(3)), torch.linalg.det(torch.randn(3, 3))),
    "einsum": lambda: torch.einsum("ij,jk->ik", torch.randn(2, 3), torch.randn(3, 4)),
    "sobol": lambda: torch.quasirandom.SobolEngine(3).draw(4),
}


def _autocast() -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return nn.Linear(4, 4)(torch.randn(2, 4))


SOURCE = """
def made(x):
    return x + torch.arange(4)

def loop(x):
    for i in range(4):
        x = torch.tanh(x @ torch.eye(4)) + x * torch.arange(4)
    return x

def literal(x):
    return x + torch.tensor([1., 2., 3., 4.])

def forked(x):
    return torch.jit.wait(torch.jit.fork(made, x)) + torch.ones(4)
"""
_unit = torch.jit.CompilationUnit(SOURCE)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + torch.arange(4)


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.convolution = nn.Conv1d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x.view(x.size(0), 4, 1))
        return self.norm(y).flatten(1) + torch.tensor([1.0, 2.0, 3.0, 4.0])


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _scripted = torch.jit.script(Scripted().eval())
    _traced = torch.jit.trace(lambda x: x + torch.arange(4), torch.ones(4))


def run_script(script: Any) -> Any:
    return [script(torch.ones(2, 4)) for _ in range(3)]


SCRIPTS: dict[str, Program] = {
    **{n: partial(run_script, getattr(_unit, n)) for n in ("made", "loop", "literal", "forked")},
    "module": partial(run_script, _scripted),
    "traced": partial(run_script, _traced),
    "scripted_here": lambda: run_script(torch.jit.script(Scripted())),
    "traced_here": lambda: run_script(torch.jit.trace(Constants(), torch.ones(2, 4))),
    "frozen": lambda: run_script(torch.jit.freeze(_scripted)),
    "for_inference": lambda: run_script(torch.jit.optimize_for_inference(_scripted)),
}


def programs() -> Iterator[tuple[str, Program]]:
    """Names and programs. Each returns its tensors."""
    yield from optimizers()
    for name, (make, sizes) in LAYERS.items():
        yield f"nn.{name}", partial(layer, make, *sizes)
    for name, distribution in DISTRIBUTIONS.items():
        yield f"distributions.{name}", partial(sample, distribution)
        yield f"distributions.{name} (real)", partial(sample_real, _real[name])
    for name, module in _real_layers.items():
        yield f"nn.{name} (real)", partial(call_real, module)
    yield from FUNCTIONS.items()
    for name, script in SCRIPTS.items():
        yield f"jit.{name}", script
