"""What tests of the replay share: a model with one of each initialization, and spies on replays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.tiny_tiles import tiny_tiles
from torchfake import deferred_init, materialize_module
from torchfake._graph.operations import dependencies
from torchfake._replay.task_graph import TaskGraph, build_task_graph
from torchfake._replay.tile_loop import TileLoop
from torchfake._replay.tiling import TileableOp


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("torchfake")]


@pytest.fixture
def tiny() -> Iterator[None]:
    """Everything is tiled, on threads, however small."""
    with tiny_tiles():
        yield


def eager_and_materialized(
    build: Callable[[], nn.Module], **options: Any
) -> tuple[nn.Module, nn.Module]:
    """``build()`` in eager mode, and the same deferred and materialized with `options`."""
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    return eager, materialize_module(deferred_init(build), **options)


class Model(nn.Module):
    """One of each kind of initialization."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24, padding_idx=0)  # a draw, and a row of zeros
        self.layers = nn.ModuleList([nn.Linear(24, 40), nn.Linear(40, 24)])
        self.norm = nn.LayerNorm(24)
        encoder = nn.TransformerEncoderLayer(24, 2, 48, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, 3)  # copies of one layer
        self.query = nn.Parameter(torch.empty(72, 24))
        for i in range(3):  # draws into parts of one tensor
            nn.init.normal_(self.query[24 * i : 24 * (i + 1)], std=0.1 * (i + 1))
        self.orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(30, 20)))
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(30, 21), std=0.5))
        self.after = nn.Linear(24, 33, dtype=torch.float64)
        self.scaled = nn.Parameter(torch.randn(37, 29) * 0.02 + 1)
        self.tied = self.embedding.weight
        self.bias = nn.Parameter(torch.zeros(500))
        self.register_buffer("table", torch.arange(100.0).sin(), persistent=False)


def task_graph_of(*tensors: Any) -> TaskGraph:
    """The tasks by which these deferred tensors are computed."""
    contents = [tensor._fake_storage.deferred.contents for tensor in tensors]
    return build_task_graph(dependencies(c.op for c in contents))


@contextmanager
def before_each_tile(spy: Callable[[TileableOp, int, int], None]) -> Iterator[None]:
    """Context: ``spy(operation, start, stop)`` is called before each tile of an operation."""
    original = TileLoop._run_op

    def run_op(self: TileLoop, tileable: TileableOp, start: int, stop: int) -> None:
        spy(tileable, start, stop)
        original(self, tileable, start, stop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TileLoop, "_run_op", run_op)
        yield
