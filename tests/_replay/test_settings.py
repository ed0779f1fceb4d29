"""Settings of thread and process that change values: those at recording hold at replay."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from tests.oracle import bits
from torchfake import deferred_init, materialize_module
from torchfake._torch import numerics
from torchfake.errors import ReplayError


@contextmanager
def switched(setter: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(before)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "flush": lambda: switched(torch.set_flush_denormal, True, False),
    "threads": lambda: switched(torch.set_num_threads, 3, torch.get_num_threads()),
    "precision": lambda: switched(torch.set_float32_matmul_precision, "medium", "highest"),
    "onednn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "dtype": lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    "autocast": lambda: torch.autocast("cpu"),
}


class Steps(nn.Module):
    """Steps whose values depend on the settings, with and without one of them."""

    def __init__(self, setting: Callable[[], AbstractContextManager[Any]], elements: int):
        super().__init__()
        for part, context in (
            ("without", nullcontext),
            ("within", setting),
            ("after", nullcontext),
        ):
            with context():
                for name, value in self.values(elements).items():
                    self.register_buffer(f"{part}_{name}", value)

    def values(self, elements: int) -> dict[str, torch.Tensor]:
        drawn = torch.randn(elements)
        square = drawn[:4096].view(64, 64)
        small = torch.full((elements,), 1e-30) * drawn
        position = torch.zeros(elements, dtype=torch.int64)
        orthogonal = torch.empty(16, 16)
        nn.init.orthogonal_(orthogonal)
        return {
            "denormal": small * 1e-12,
            "uniform": torch.empty(elements).uniform_(0, 1e-38),
            "sum": drawn.sum(),
            "product": square @ square,
            "convolution": torch.conv1d(
                drawn[:4096].view(1, 8, 512), square[:8, :24].view(8, 8, 3)
            ),
            "added": torch.zeros(4).index_put(
                (position[:3000] % 2,), drawn[:3000], accumulate=True
            ),
            "scattered": torch.zeros(2).scatter_add(0, position[:3000], drawn[:3000]),
            "arange": torch.arange(3.0) / 3,
            "orthogonal": orthogonal,
            "lstm": _run_lstm(square.float().view(4, 16, 64)),
        }


def _run_lstm(x: torch.Tensor) -> torch.Tensor:
    """In bfloat16 under autocast, which oneDNN refuses on processors without AVX-512."""
    runs = torch.ops.mkldnn._is_mkldnn_bf16_supported() or not torch.is_autocast_enabled("cpu")
    with nullcontext() if runs else torch.autocast("cpu", enabled=False):
        return nn.LSTM(64, 8, dtype=torch.float32)(x)[0].detach()


def _settings():
    products = [numerics.current_for_products(kind) for kind in ("matmul", "conv", "rnn")]
    return numerics.current(), products


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize(
    ("name", "at_replay", "elements"),
    [
        *((name, None, 5_000) for name in SETTINGS),
        *((name, None, 300_000) for name in ("flush", "threads")),  # tiled, and split in sums
        *((name, other, 5_000) for name in ("flush", "dtype") for other in SETTINGS),
    ],
)
def test_a_setting_around_steps_holds_at_replay(name, at_replay, elements):
    torch.set_float32_matmul_precision("highest")  # as after "precision"
    torch.manual_seed(0)
    eager = Steps(SETTINGS[name], elements)
    torch.manual_seed(0)
    module = deferred_init(Steps, SETTINGS[name], elements)
    before = _settings()
    with SETTINGS[at_replay]() if at_replay else nullcontext():
        materialize_module(module)
    assert before == _settings()
    expected = dict(eager.named_buffers())
    wrong = [n for n, b in module.named_buffers() if bits(b) != bits(expected[n])]
    assert not wrong


def test_another_rounding_mode_is_refused_when_it_is_replayed():
    upward = 0x800
    libm = ctypes.CDLL("libm.so.6")

    def build() -> nn.Module:
        module = nn.Module()
        libm.fesetround(upward)
        try:
            module.register_buffer("third", torch.ones(3) / 3)
        finally:
            libm.fesetround(0)
        return module

    with pytest.raises(ReplayError, match="rounding mode"):
        materialize_module(deferred_init(build))
