"""Draws of every kind, with good and bad arguments: each is a function of a tensor and a generator.

`FILLS` write their tensor, `FUNCTIONS` take parameters from it, `FACTORIES` only its dtype and
sizes, `INITIALIZERS` are those of ``torch.nn.init``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

INF, NAN = float("inf"), float("nan")
Draw = Callable[[torch.Tensor, Any], Any]

FILLS: dict[str, list[tuple[Any, ...]]] = {
    "uniform_": [(), (1, 0), (0, INF), (-1e40, 1e40), (NAN, 1), (-70000, 70000)],
    "normal_": [(), (0, -1), (0, 0), (1, NAN)],
    "random_": [(), (10,), (0,), (-5,), (5, 3), (3, 3), (1, 1000), (-1, 5), (1 << 40,), (300,),
                (0, (1 << 63) - 1), (-(1 << 63), None), (5, None), (1 << 40, None), (2049,)],
    "bernoulli_": [(), (0.5,), (1.5,), (-0.1,), (NAN,), (0,), (1,)],
    "exponential_": [(), (-1,), (0,), (INF,), (NAN,)],
    "geometric_": [(0.5,), (0,), (1,), (1.5,), (-1,), (NAN,)],
    "cauchy_": [(), (0, -1), (0, 0), (NAN, 1)],
    "log_normal_": [(), (0, -1), (0, 0), (0, NAN)],
}  # fmt: skip

FUNCTIONS: dict[str, Draw] = {
    "bernoulli": lambda t, g: torch.bernoulli(t, generator=g),
    "bernoulli of halves": lambda t, g: torch.bernoulli(t * 0.5, generator=g),
    "bernoulli of 2": lambda t, g: torch.bernoulli(t + t, generator=g),
    "bernoulli of -1": lambda t, g: torch.bernoulli(-t, generator=g),
    "bernoulli p=0.3": lambda t, g: torch.bernoulli(t, 0.3, generator=g),
    "bernoulli p=3": lambda t, g: torch.bernoulli(t, 3, generator=g),
    "bernoulli_ of itself": lambda t, g: t.bernoulli_(t, generator=g),
    "bernoulli_ of doubles": lambda t, g: t.bernoulli_(t.double() * 0.5, generator=g),
    "bernoulli_ of 2": lambda t, g: t.bernoulli_(t.float() * 2, generator=g),
    "bernoulli_ of integers": lambda t, g: t.bernoulli_(t.long(), generator=g),
    "bernoulli_ of another shape": lambda t, g: t.bernoulli_(torch.ones(3, 9, 2), generator=g),
    "poisson": lambda t, g: torch.poisson(t, generator=g),
    "poisson of -1": lambda t, g: torch.poisson(t - 2, generator=g),
    "poisson of nan": lambda t, g: torch.poisson(t * NAN, generator=g),
    "binomial": lambda t, g: torch.binomial(t * 9, t * 0.5, generator=g),
    "binomial of two dtypes": lambda t, g: torch.binomial(t.double(), t, generator=g),
    "binomial of 2": lambda t, g: torch.binomial(t, t + t, generator=g),
    "binomial of -1": lambda t, g: torch.binomial(-t, t * 0.5, generator=g),
    "multinomial 1": lambda t, g: torch.multinomial(t, 1, generator=g),
    "multinomial 2": lambda t, g: torch.multinomial(t, 2, generator=g),
    "multinomial 0": lambda t, g: torch.multinomial(t, 0, generator=g),
    "multinomial 99": lambda t, g: torch.multinomial(t, 99, generator=g),
    "multinomial 99 replaced": lambda t, g: torch.multinomial(t, 99, True, generator=g),
    "multinomial 3 replaced": lambda t, g: torch.multinomial(t, 3, True, generator=g),
    "multinomial of -1": lambda t, g: torch.multinomial(-t, 2, generator=g),
    "multinomial of 0": lambda t, g: torch.multinomial(t - t, 2, generator=g),
    "multinomial of 0 replaced": lambda t, g: torch.multinomial(t - t, 2, True, generator=g),
    "multinomial of 0, 1": lambda t, g: torch.multinomial(t - t, 1, generator=g),
    "multinomial of inf": lambda t, g: torch.multinomial(t * INF, 2, True, generator=g),
    "multinomial of nan": lambda t, g: torch.multinomial(t * NAN, 1, generator=g),
    "normal of a mean": lambda t, g: torch.normal(t, generator=g),
    "normal of a mean, std -1": lambda t, g: torch.normal(t, -1.0, generator=g),
    "normal of a std": lambda t, g: torch.normal(0.5, t, generator=g),
    "normal of std -1": lambda t, g: torch.normal(0.5, -t, generator=g),
    "normal of both": lambda t, g: torch.normal(t, t, generator=g),
    "normal of mean and std -1": lambda t, g: torch.normal(t, -t, generator=g),
    "normal of two dtypes": lambda t, g: torch.normal(t, t.double(), generator=g),
    "normal of two shapes": lambda t, g: torch.normal(t, torch.ones(3, 9, 2), generator=g),
    "_standard_gamma": lambda t, g: torch._standard_gamma(t, generator=g),
    "_standard_gamma of -1": lambda t, g: torch._standard_gamma(-t, generator=g),
    "_sample_dirichlet": lambda t, g: torch._sample_dirichlet(t, generator=g),
    "rand_like": lambda t, g: torch.rand_like(t),
    "randn_like": lambda t, g: torch.randn_like(t),
    "randn_like of integers": lambda t, g: torch.randn_like(t, dtype=torch.int64),
    "randint_like": lambda t, g: torch.randint_like(t, 9),
    "randint_like to 300": lambda t, g: torch.randint_like(t, 2, 300),
    "randint_like 3, 3": lambda t, g: torch.randint_like(t, 3, 3),
    "randint_like from -1": lambda t, g: torch.randint_like(t, -1, 3),
    "dropout": lambda t, g: F.dropout(t, 0.5),
    "dropout p=1": lambda t, g: F.dropout(t, 1.0),
    "dropout p=1.5": lambda t, g: torch.dropout(t, 1.5, True),
    "dropout_": lambda t, g: torch.dropout_(t, 0.3, True),
    "native_dropout": lambda t, g: torch.native_dropout(t, 0.3, True),
    "native_dropout p=-1": lambda t, g: torch.native_dropout(t, -1.0, True),
    "native_dropout p=0": lambda t, g: torch.native_dropout(t, 0.0, True),
    "alpha_dropout": lambda t, g: F.alpha_dropout(t, 0.5, True),
    "alpha_dropout p=-1": lambda t, g: torch.alpha_dropout(t, -1.0, True),
    "feature_dropout": lambda t, g: torch.feature_dropout(t, 0.5, True),
    "feature_dropout_ p=2": lambda t, g: torch.feature_dropout_(t, 2.0, True),
    "feature_alpha_dropout": lambda t, g: F.feature_alpha_dropout(t, 0.5, True),
    "dropout1d": lambda t, g: F.dropout1d(t, 0.5, True),
    "rrelu": lambda t, g: F.rrelu(t, training=True),
    "rrelu of a bad range": lambda t, g: F.rrelu(t, 0.5, 0.1, training=True),
    "rrelu_": lambda t, g: F.rrelu(t, training=True, inplace=True),
    "rrelu_with_noise": lambda t, g: torch.ops.aten.rrelu_with_noise(
        t, torch.ones_like(t), training=True, generator=g
    ),
    "gumbel_softmax": lambda t, g: F.gumbel_softmax(t, dim=-1),
    "fractional_max_pool2d": lambda t, g: F.fractional_max_pool2d(t, 2, output_size=1),
    "svd_lowrank": lambda t, g: torch.svd_lowrank(t, q=2),
    "attention": lambda t, g: F.scaled_dot_product_attention(t, t, t, dropout_p=0.5),
    "rand out": lambda t, g: torch.rand(t.shape, out=t, generator=g),
    "randn out": lambda t, g: torch.randn(t.shape, out=t, generator=g),
    "randint out": lambda t, g: torch.randint(-2, 300, t.shape, out=t, generator=g),
    "randperm out": lambda t, g: torch.randperm(300, out=torch.zeros(300).to(t.dtype), generator=g),
    "normal out": lambda t, g: torch.normal(0.0, -1.0, t.shape, out=t, generator=g),
    "bernoulli out": lambda t, g: torch.bernoulli(t.float() * 0.5, out=t, generator=g),
    "normal of tensors out": lambda t, g: torch.normal(t, t.float(), out=t, generator=g),
}

FACTORIES: dict[str, Draw] = {
    "rand": lambda t, g: torch.rand(t.shape, dtype=t.dtype, generator=g),
    "rand of a negative size": lambda t, g: torch.rand(-1, dtype=t.dtype, generator=g),
    "randn": lambda t, g: torch.randn(t.shape, dtype=t.dtype, generator=g),
    "randint": lambda t, g: torch.randint(9, t.shape, dtype=t.dtype, generator=g),
    "randint 2, 300": lambda t, g: torch.randint(2, 300, t.shape, dtype=t.dtype, generator=g),
    "randint 3, 3": lambda t, g: torch.randint(3, 3, t.shape, dtype=t.dtype, generator=g),
    "randint 0": lambda t, g: torch.randint(0, t.shape, dtype=t.dtype, generator=g),
    "randint -1, 2": lambda t, g: torch.randint(-1, 2, t.shape, dtype=t.dtype, generator=g),
    "randint 1 << 62": lambda t, g: torch.randint(1 << 62, t.shape, dtype=t.dtype, generator=g),
    "randperm 7": lambda t, g: torch.randperm(7, dtype=t.dtype, generator=g),
    "randperm 0": lambda t, g: torch.randperm(0, dtype=t.dtype, generator=g),
    "randperm -1": lambda t, g: torch.randperm(-1, dtype=t.dtype, generator=g),
    "randperm 300": lambda t, g: torch.randperm(300, dtype=t.dtype, generator=g),
    "randperm 70000": lambda t, g: torch.randperm(70000, dtype=t.dtype, generator=g),
    "normal": lambda t, g: torch.normal(0.0, 1.0, t.shape, dtype=t.dtype, generator=g),
    "normal std -1": lambda t, g: torch.normal(0.0, -1.0, t.shape, dtype=t.dtype, generator=g),
}

init = nn.init
INITIALIZERS: dict[str, Draw] = {
    "uniform_": lambda t, g: init.uniform_(t, -1, 2, generator=g),
    "uniform_ 1, 0": lambda t, g: init.uniform_(t, 1, 0, generator=g),
    "normal_": lambda t, g: init.normal_(t, 1, 2, generator=g),
    "normal_ std -1": lambda t, g: init.normal_(t, 1, -2, generator=g),
    "trunc_normal_": lambda t, g: init.trunc_normal_(t, generator=g),
    "trunc_normal_ narrow": lambda t, g: init.trunc_normal_(t, std=0.02, generator=g),
    "trunc_normal_ tail": lambda t, g: init.trunc_normal_(t, 0, 1, 1, 3, generator=g),
    "trunc_normal_ std -1": lambda t, g: init.trunc_normal_(t, std=-1, generator=g),
    "trunc_normal_ std 0": lambda t, g: init.trunc_normal_(t, std=0, generator=g),
    "constant_": lambda t, g: init.constant_(t, 0.3),
    "ones_": lambda t, g: init.ones_(t),
    "zeros_": lambda t, g: init.zeros_(t),
    "eye_": lambda t, g: init.eye_(t.to(torch.float32)),
    "dirac_": lambda t, g: init.dirac_(t),
    "dirac_ of 5 groups": lambda t, g: init.dirac_(t, 5),
    "xavier_uniform_": lambda t, g: init.xavier_uniform_(t, generator=g),
    "xavier_normal_": lambda t, g: init.xavier_normal_(t, 2.0, generator=g),
    "xavier_normal_ gain -1": lambda t, g: init.xavier_normal_(t, -1.0, generator=g),
    "kaiming_uniform_": lambda t, g: init.kaiming_uniform_(t, 5**0.5, generator=g),
    "kaiming_uniform_ mode": lambda t, g: init.kaiming_uniform_(t, mode="fan", generator=g),
    "kaiming_normal_": lambda t, g: init.kaiming_normal_(t, mode="fan_out", generator=g),
    "kaiming_normal_ of swish": lambda t, g: init.kaiming_normal_(t, nonlinearity="swish"),
    "orthogonal_": lambda t, g: init.orthogonal_(t, generator=g),
    "orthogonal_ gain 2": lambda t, g: init.orthogonal_(t, 2.0, generator=g),
    "sparse_": lambda t, g: init.sparse_(t, 0.3, generator=g),
    "sparse_ of 1.5": lambda t, g: init.sparse_(t, 1.5, generator=g),
    "sparse_ of -1": lambda t, g: init.sparse_(t, -1, generator=g),
    "sparse_ std -1": lambda t, g: init.sparse_(t, 0.3, -1, generator=g),
}

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
          torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
          torch.complex32)  # fmt: skip
SHAPES: tuple[tuple[int, ...], ...] = (
    (5,), (), (0,), (4, 6), (6, 4), (40,), (0, 4), (4, 0), (2, 3, 5), (3, 3, 2, 2), (2, 1, 1, 3, 3)
)  # fmt: skip


def fills() -> Iterator[tuple[str, Draw]]:
    for name, arguments in FILLS.items():
        for args in arguments:

            def draw(t: torch.Tensor, g: Any, name: str = name, args: Any = args) -> Any:
                return getattr(t, name)(*args, generator=g)

            yield f"{name}{args}", draw


def all_draws() -> dict[str, Draw]:
    """Every draw by its name."""
    tables = {"": FUNCTIONS, "torch.": FACTORIES, "init.": INITIALIZERS}
    found = dict(fills())
    for prefix, table in tables.items():
        found |= {prefix + name: draw for name, draw in table.items()}
    return found


class Case(NamedTuple):
    """One call of a draw."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    has_generator: bool


def cases() -> list[Case]:
    """Every draw, dtype and shape, with and without a generator."""
    parts = (all_draws(), DTYPES, SHAPES, (False, True))
    return [Case(*case) for case in itertools.product(*parts)]
