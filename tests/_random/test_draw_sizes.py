"""The number of words that random operators draw, against what they do draw."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torchfake import deferred_mode, fake_mode
from torchfake._core.metadata import metadata_of
from torchfake._core.schemas import overload_with_generator
from torchfake._random import draw_sizes
from torchfake._random.mt19937 import jump_ahead

aten = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
SIZES = [(0,), (1,), (15,), (16,), (17,), (31,), (32,), (41,), (7, 9), (640, 3), (100_003,)]

IN_PLACE: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.uniform_.default, ()),
    (aten.uniform_.default, (-2.0, 3.0)),
    (aten.normal_.default, ()),
    (aten.normal_.default, (1.0, 0.5)),
    (aten.exponential_.default, (2.0,)),
    (aten.geometric_.default, (0.3,)),
    (aten.cauchy_.default, ()),
    (aten.bernoulli_.float, (0.3,)),
    (aten.log_normal_.default, ()),
    (aten.random_.default, ()),
    (aten.random_.to, (100,)),
    (getattr(aten.random_, "from"), (-7, 100)),
    (getattr(aten.random_, "from"), (0, (1 << 28) - 1)),
    (getattr(aten.random_, "from"), (0, 1 << 28)),
    (getattr(aten.random_, "from"), (-5, 1 << 33)),
]
FACTORIES: list[tuple[Any, Any]] = [
    (aten.rand.default, lambda size: (size,)),
    (aten.randn.default, lambda size: (size,)),
    (aten.randint.default, lambda size: (10, size)),
    (aten.randint.low, lambda size: (-3, 10, size)),
    (aten.randint.low, lambda size: (0, 1 << 40, size)),
    (aten.randperm.default, lambda size: (math.prod(size),)),
]
MUST_BE_RUN = {"aten.log_normal_.default"}


def is_counted(func: Any, args: tuple[Any, ...], record: Any, draw: Any) -> bool:
    """Whether the number is known; if so, it has to lead to the state that the draw leaves."""
    num_words = draw_sizes.num_words_drawn(func, args, record)
    generator = torch.Generator().manual_seed(11)
    torch.rand(5, generator=generator)
    before = generator.get_state()
    draw(generator)
    if num_words is not None:
        assert torch.equal(jump_ahead(before, num_words), generator.get_state())
    return num_words is not None


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize(("func", "numbers"), IN_PLACE, ids=[f"{f} {a}" for f, a in IN_PLACE])
def test_in_place(func: Any, numbers: Any, dtype: torch.dtype) -> None:
    counted = False
    for size in SIZES:
        for tensor in (torch.empty(size, dtype=dtype), torch.empty(size[::-1], dtype=dtype).t()):
            try:
                func(tensor, *numbers, generator=torch.Generator())
            except (RuntimeError, UserWarning):
                continue  # not supported for this dtype, or these bounds
            record = metadata_of(tensor, torch.device("cpu"))
            draw = lambda g: func(tensor, *numbers, generator=g)  # noqa: B023, E731
            counted |= is_counted(func, (tensor, *numbers), record, draw)
    if dtype in FLOATS and str(func) in ("aten.uniform_.default", "aten.normal_.default"):
        assert counted
    assert not (counted and str(func) in MUST_BE_RUN)


@pytest.mark.parametrize(("func", "arguments"), FACTORIES, ids=[str(f) for f, _ in FACTORIES])
def test_factories(func: Any, arguments: Any) -> None:
    for size in SIZES:
        args = arguments(size)
        result = func(*args)
        record = metadata_of(result, torch.device("cpu"))
        with_one = overload_with_generator(func)
        counted = is_counted(func, args, record, lambda g: with_one(*args, generator=g))  # noqa: B023
        assert counted or (func is aten.randn.default and result.numel() < 16)


def test_a_torch_that_draws_otherwise_warns_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = metadata_of(torch.empty(100), torch.device("cpu"))
    monkeypatch.setattr(draw_sizes, "_matches_one_draw", lambda *_: False)
    for cached in (draw_sizes._num_words, draw_sizes._is_verified, draw_sizes._warn_once):
        cached.cache_clear()
    try:
        with pytest.warns(UserWarning, match="generates random numbers differently"):
            assert draw_sizes.num_words_drawn(aten.uniform_.default, (), record) is None
        with warnings.catch_warnings():  # once; and MKL draws otherwise on some processors
            warnings.simplefilter("error")
            assert draw_sizes.num_words_drawn(aten.normal_.default, (), record) is None
            assert draw_sizes.num_words_drawn(aten.exponential_.default, (), record) is None
    finally:
        for cached in (draw_sizes._num_words, draw_sizes._is_verified, draw_sizes._warn_once):
            cached.cache_clear()


LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "attention": (lambda: lambda x: F.scaled_dot_product_attention(x, x, x), (1, 2, 16, 64)),
    "LSTM": (lambda: torch.nn.LSTM(3, 4, device="cuda"), (2, 2, 3)),
    "GRU": (lambda: torch.nn.GRU(3, 4, 2, dropout=0.5, device="cuda").eval(), (2, 2, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_cuda_kernel_without_dropout_draws_nothing(name: str) -> None:
    """So the position of later draws is known, though no kernel of CUDA can be run here."""
    build, size = LAYERS[name]

    def drawn(*, is_run: bool) -> Any:
        with deferred_mode(fake_cuda=True):
            torch.manual_seed(0)
            layer, x = build(), torch.ones(size, device="cuda")
            if is_run:
                layer(x)
            return torch.rand(3, device="cuda").tolist()

    assert drawn(is_run=True) == drawn(is_run=False)


NORMALS: dict[str, Callable[[], Any]] = {
    "rows apart": lambda: torch.zeros(2, 400)[::2].normal_(),
    "rows apart, like": lambda: torch.randn_like(torch.zeros(2, 400)[::2]),
    "rows apart, out": lambda: torch.randn(1, 400, out=torch.zeros(2, 400)[::2]),
    "one window": lambda: torch.zeros(400).unfold(0, 300, 200).normal_(),
    "one channel": lambda: torch.zeros(64, 1, 3, 3).to(memory_format=torch.channels_last).normal_(),
    "columns apart": lambda: torch.zeros(400, 2)[:, ::2].normal_(),
    "transposed": lambda: torch.zeros(20, 30).t().normal_(),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", NORMALS)
def test_normal_numbers_in_any_layout(name: str, mode: Callable[[], Any]) -> None:
    """Dims of one element may have any stride: the kernel draws whole blocks nevertheless."""
    torch.manual_seed(0)
    NORMALS[name]()
    expected = torch.get_rng_state()
    torch.manual_seed(0)
    with mode():
        NORMALS[name]()
        assert torch.equal(torch.get_rng_state(), expected)
