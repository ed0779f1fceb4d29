"""Programs that draw, seed, save and restore, made from a number, for eager PyTorch and for modes.

A program is a function of a ``random.Random``: it makes the same choices in any mode. It returns
what it has read: values of small draws, and states of generators as digests.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torchfake import deferred_mode, fake_mode

Mode = Callable[[], AbstractContextManager[Any]]
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SMALL, LARGE = (1, 2, 7, 15, 16, 17, 33, 64), (65, 100, 257, 1000, 4099)
_GENERATOR = torch.Generator


def digest(state: torch.Tensor) -> str:
    return hashlib.blake2b(bytes(state.tolist()), digest_size=8).hexdigest()


def _shape(order: random.Random, size: int) -> tuple[int, ...]:
    return order.choice([(size,), (size, 1), (1, size)])


FILLS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "uniform": lambda t, g: t.uniform_(-1, 2, generator=g),
    "normal": lambda t, g: t.normal_(1, 0.5, generator=g),
    "exponential": lambda t, g: t.exponential_(2, generator=g),
    "bernoulli": lambda t, g: t.bernoulli_(0.3, generator=g),
    "geometric": lambda t, g: t.geometric_(0.3, generator=g),
    "cauchy": lambda t, g: t.cauchy_(generator=g),
    "log_normal": lambda t, g: t.log_normal_(generator=g),
    "random": lambda t, g: t.random_(5, generator=g),
    "random_full": lambda t, g: t.random_(generator=g),
    "trunc_normal": lambda t, g: nn.init.trunc_normal_(t, std=0.02, generator=g),
    "trunc_narrow": lambda t, g: nn.init.trunc_normal_(t, std=1.5, generator=g),
    "trunc_far": lambda t, g: nn.init.trunc_normal_(t, a=1.0, b=4.0, generator=g),
    "kaiming": lambda t, g: nn.init.kaiming_uniform_(t.unsqueeze(0), generator=g),
}

FACTORIES: dict[str, Callable[..., Any]] = {
    "rand": lambda n, d, g: torch.rand(n, dtype=d, generator=g),
    "randn": lambda n, d, g: torch.randn(n, 1, dtype=d, generator=g),
    "randint": lambda n, d, g: torch.randint(9, (n,), generator=g),
    "randint_low": lambda n, d, g: torch.randint(-5, 1 << 40, (n,), generator=g),
    "randperm": lambda n, d, g: torch.randperm(n, generator=g),
    "normal": lambda n, d, g: torch.normal(0.5, 2.0, (n,), generator=g, dtype=d),
    "bernoulli": lambda n, d, g: torch.bernoulli(torch.full((n,), 0.3, dtype=d), generator=g),
    "multinomial": lambda n, d, g: torch.multinomial(torch.ones(n), max(n // 2, 1), generator=g),
    "multinomial_one": lambda n, d, g: torch.multinomial(torch.ones(3, n), 1, generator=g),
    "multinomial_repeated": lambda n, d, g: torch.multinomial(
        torch.ones(n, dtype=d), 7, True, generator=g
    ),
    "poisson": lambda n, d, g: torch.poisson(torch.full((n,), 3.5), generator=g),
    "normal_tensors": lambda n, d, g: torch.normal(torch.zeros(n), torch.ones(n), generator=g),
}

GLOBAL: dict[str, Callable[[int, torch.dtype], Any]] = {
    "rand_like": lambda n, d: torch.rand_like(torch.ones(n, dtype=d)),
    "randn_like": lambda n, d: torch.randn_like(torch.ones(n, dtype=d)),
    "randint_like": lambda n, d: torch.randint_like(torch.ones(n), 7),
    "dropout": lambda n, d: F.dropout(torch.ones(n), 0.4),
    "dropout_off": lambda n, d: F.dropout(torch.ones(n), 0.4, training=False),
    "dropout_module": lambda n, d: nn.Dropout(0.1)(torch.ones(2, n)),
    "dropout2d": lambda n, d: F.dropout2d(torch.ones(1, n, 2, 2)),
    "alpha_dropout": lambda n, d: F.alpha_dropout(torch.ones(n), 0.2, training=True),
    "native_dropout": lambda n, d: torch.native_dropout(torch.ones(n), 0.3, True)[0],
    "rrelu": lambda n, d: F.rrelu(torch.arange(float(n)) - 3, training=True),
    "rrelu_eval": lambda n, d: F.rrelu(torch.arange(float(n)) - 3),
    "linear": lambda n, d: nn.Linear(n, 3).bias,
    "embedding": lambda n, d: nn.Embedding(n, 2).weight,
    "conv": lambda n, d: nn.Conv1d(n, 2, 3).bias,
    "lstm": lambda n, d: nn.LSTM(3, 4, num_layers=2, dropout=0.5)(torch.ones(n, 1, 3))[0],
    "attention": lambda n, d: F.scaled_dot_product_attention(
        torch.ones(1, n, 4), torch.ones(1, n, 4), torch.ones(1, n, 4), dropout_p=0.3
    ),
    "encoder": lambda n, d: nn.TransformerEncoderLayer(4, 2, 8)(torch.ones(n, 1, 4)),
    "gumbel": lambda n, d: F.gumbel_softmax(torch.ones(n)),
    "pool": lambda n, d: F.fractional_max_pool2d(torch.ones(1, n, 5, 5), 2, output_size=2),
    "categorical": lambda n, d: torch.distributions.Categorical(torch.ones(n)).sample((2,)),
    "gaussian": lambda n, d: torch.distributions.Normal(0.0, 1.0).sample((n,)),
    "gamma": lambda n, d: torch.distributions.Gamma(torch.ones(n), 2.0).sample(),
    "beta": lambda n, d: torch.distributions.Beta(torch.ones(n), 2.0).sample(),
    "dirichlet": lambda n, d: torch.distributions.Dirichlet(torch.ones(n + 1)).sample(),
    "binomial": lambda n, d: torch.distributions.Binomial(9, torch.full((n,), 0.5)).sample(),
    "complex": lambda n, d: torch.randn(n, dtype=torch.complex64).real,
    "complex_rand": lambda n, d: torch.rand(n, dtype=torch.complex128).real,
    "strided": lambda n, d: torch.empty(n, 3, dtype=d).t().normal_(),
    "strided_uniform": lambda n, d: torch.empty(n, 2, dtype=d).t().uniform_(),
    "half_of_it": lambda n, d: torch.zeros(n, 2, dtype=d)[:, 0].normal_(),
    "flags": lambda n, d: torch.zeros(n, dtype=torch.bool).bernoulli_(0.3),
    "by_tensor": lambda n, d: torch.zeros(n, dtype=d).bernoulli_(torch.full((n,), 0.5)),
    "orthogonal": lambda n, d: nn.init.orthogonal_(torch.empty(n, 3)),
    "sparse": lambda n, d: nn.init.sparse_(torch.empty(n, 3), 0.5),
}

OUT: dict[str, Callable[[int, torch.Tensor], Any]] = {
    "rand": lambda n, out: torch.rand(n, out=out),
    "randn": lambda n, out: torch.randn(n, out=out),
    "normal": lambda n, out: torch.normal(1.0, 2.0, (n,), out=out),
    "normal_tensor": lambda n, out: torch.normal(torch.zeros(n), 2.0, out=out),
    "bernoulli": lambda n, out: torch.bernoulli(torch.full((n,), 0.5), out=out),
    "randint": lambda n, out: torch.randint(3, 9, (n,), out=out),
    "randperm": lambda n, out: torch.randperm(n, out=out),
}


class Program:
    """One run: what is made and read so far."""

    def __init__(self, seed: int, mode: Mode) -> None:
        self.order, self.mode = random.Random(seed), mode
        self.drawn: list[torch.Tensor] = []
        self.states: list[tuple[torch.Tensor, int]] = []
        self.generators = [torch.Generator().manual_seed(seed)]
        self.read: list[Any] = []
        self.base = 0  # a number for the state that the global generator has beside the mode
        self.bases: list[torch.Tensor] = [torch.get_rng_state()]
        self.log: list[str] = []

    def keep(self, drawn: Any) -> None:
        if isinstance(drawn, torch.Tensor) and 0 < drawn.numel() <= 64:
            self.drawn.append(drawn)

    def size(self) -> int:
        return self.order.choice(self.order.choice([SMALL, LARGE]))

    def fill(self, generator: Any = None) -> None:
        name, dtype = self.order.choice(sorted(FILLS)), self.order.choice(FLOATS)
        if name.startswith(("trunc", "kaiming")) and dtype == torch.float16:
            dtype = torch.float32
        tensor = torch.zeros(self.size(), dtype=dtype)
        self.log.append(f"{name} {tuple(tensor.shape)} {dtype}")
        FILLS[name](tensor, generator)
        self.keep(tensor)

    def make(self, generator: Any = None) -> None:
        name, dtype = self.order.choice(sorted(FACTORIES)), self.order.choice(FLOATS[:2])
        size = self.size()
        self.log.append(f"{name} {size} {dtype}")
        self.keep(FACTORIES[name](size, dtype, generator))

    def call(self) -> None:
        name, size = self.order.choice(sorted(GLOBAL)), self.size()
        dtype = self.order.choice(FLOATS)
        self.log.append(f"{name} {size} {dtype}")
        if name in ("attention", "orthogonal", "sparse", "pool", "lstm", "encoder"):
            size = min(size, 100)
        drawn = GLOBAL[name](size, dtype)
        if name in READABLE and not (name == "beta" and size > 32):  # drawn as pairs
            self.keep(drawn)

    def out(self) -> None:
        name, size = self.order.choice(sorted(OUT)), self.size()
        dtype = torch.int64 if name in ("randint", "randperm") else torch.float32
        self.log.append(f"out {name} {size}")
        old_size = self.order.choice([0, size]) if name != "normal_tensor" else size
        out = torch.zeros(old_size, dtype=dtype)
        OUT[name](size, out)
        self.keep(out)

    def own(self) -> None:
        generator = self.order.choice(self.generators)
        self.log.append(f"own generator {self.generators.index(generator)}")
        self.order.choice([self.fill, self.make])(generator)

    def read_one(self) -> None:
        if self.drawn:
            self.log.append("read")
            tensor = self.order.choice(self.drawn)
            self.read.append((len(self.log), tensor.tolist()))

    def seed(self) -> None:
        seed = self.order.randrange(3)
        self.log.append(f"seed {seed}")
        self.order.choice([torch.manual_seed, torch.random.manual_seed])(seed)
        self.bases.append(_GENERATOR().manual_seed(seed).get_state())
        self.base = len(self.bases) - 1

    def save(self) -> None:
        self.log.append("save")
        self.states.append((torch.get_rng_state(), self.base))
        self.read.append((len(self.log), digest(self.states[-1][0])))

    def restore(self) -> None:
        if self.states:
            self.log.append("restore")
            state, self.base = self.order.choice(self.states)
            torch.set_rng_state(state.clone() if self.order.random() < 0.5 else state)

    def fork(self) -> None:
        self.log.append("fork {")
        before = self.base
        with torch.random.fork_rng(devices=[]):
            if self.order.random() < 0.7:
                self.seed()
            self.run(self.order.randrange(4))
        self.base = before
        self.log.append("} fork")

    def nest(self) -> None:
        self.log.append("mode {")
        with self.mode():
            self.run(self.order.randrange(4))
        self.log.append("} mode")

    def generator(self) -> None:
        how, chosen = self.order.choice([0, 1, 3, 4, 5]), self.order.choice(self.generators)
        self.log.append(f"generator method {how} of {self.generators.index(chosen)}")
        if how == 0:
            self.generators.append(chosen.clone_state())
        elif how == 1:
            self.generators.append(copy.deepcopy(chosen))
        elif how == 2:
            self.generators.append(pickle.loads(pickle.dumps(chosen)))
        elif how == 3:
            chosen.manual_seed(self.order.randrange(3))
        elif how == 4:
            state = chosen.get_state()
            torch.rand(self.size(), generator=chosen)
            chosen.set_state(state.clone())
        else:
            torch.randperm(3, generator=chosen)
            self.read.append((len(self.log), digest(chosen.get_state())))

    def run(self, num_steps: int) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.fill, 5), (self.make, 5), (self.call, 6), (self.out, 2), (self.own, 2),
            (self.read_one, 4), (self.seed, 1), (self.save, 1), (self.restore, 1), (self.fork, 1),
            (self.nest, 1), (self.generator, 1),
        ]  # fmt: skip
        functions, weights = zip(*steps, strict=True)
        for _ in range(num_steps):
            self.order.choices(functions, weights)[0]()

    def finish(self) -> None:
        self.save()
        for i, tensor in enumerate(self.drawn):
            self.read.append((i, tensor.tolist()))
        self.read += [digest(generator.get_state()) for generator in self.generators]


READABLE = frozenset(GLOBAL) - {
    "lstm",
    "attention",
    "encoder",
    "pool",
    "orthogonal",
    "native_dropout",
}
"""Whose small results have values if the arguments have."""


def run_program(seed: int, mode: Mode = nullcontext, num_steps: int = 25) -> Program:
    """Run the program of `seed` inside a mode."""
    torch.manual_seed(seed)
    program = Program(seed, mode)
    with mode():
        program.run(num_steps)
        program.finish()
    return program


def _run_many(num_programs: int) -> None:
    """Exit with an error after the first program that reads something else in a mode."""
    for seed in range(num_programs):
        expected = run_program(seed).read
        for mode in (fake_mode, deferred_mode):
            ours = run_program(seed, mode)
            if repr(ours.read) != repr(expected):
                raise SystemExit(f"program {seed} in {mode.__name__}: {ours.log}")


if __name__ == "__main__":
    _run_many(int(sys.argv[1]))
