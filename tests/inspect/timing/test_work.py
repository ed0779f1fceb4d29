"""FLOPs and bytes of calls, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchfake import fake_mode
from torchfake.inspect.timing.commands import LAUNCH, CommandRecorder, Place
from torchfake.inspect.timing.formulas import flop_formulas
from torchfake.inspect.timing.work import Work, bytes_touched, launches_nothing
from torchfake.observe import Observer, observing

MIB = 1 << 20


class Recorder(Observer):
    def __init__(self) -> None:
        super().__init__()
        self.recorder = CommandRecorder()

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.recorder.launch(func, args, kwargs, result, lambda: Place(0))


@pytest.fixture
def works() -> Iterator[Callable[[Callable[[], Any]], list[Work]]]:
    """Gives the work of each kernel that a function launches."""
    with fake_mode(fake_cuda="h100-80gb"):

        def of(run: Callable[[], Any]) -> list[Work]:
            recorder = Recorder()
            with observing(recorder):
                run()
            commands = recorder.recorder.commands
            return [c.work for c in commands if c.what == LAUNCH and c.work is not None]

        yield of


def on_gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="cuda")


def test_products(works: Any) -> None:
    x, w = on_gpu(64, 1024), on_gpu(4096, 1024)
    (found,) = works(lambda: F.linear(x, w))
    num_bytes = 2 * (64 * 1024 + 4096 * 1024 + 64 * 4096)
    assert found == Work(
        "matrix products", 2 * 64 * 1024 * 4096, num_bytes, torch.bfloat16, products=(1, 64, 4096)
    )
    batch = on_gpu(8, 64, 32)
    (found,) = works(lambda: batch @ on_gpu(8, 32, 16))
    assert found.products == (8, 64, 16)
    assert found.flops == 2 * 8 * 64 * 32 * 16


def test_attention(works: Any) -> None:
    x = on_gpu(2, 8, 512, 64)
    (whole,) = works(lambda: F.scaled_dot_product_attention(x, x, x))
    (causal,) = works(lambda: F.scaled_dot_product_attention(x, x, x, is_causal=True))
    assert whole.flops == causal.flops == 4 * 2 * 8 * 512 * 512 * 64
    assert (whole.executed, causal.executed) == (1.0, 0.5)
    assert whole.kind == "cuDNN attention"


def test_bytes_are_those_that_are_read_and_written(works: Any) -> None:
    x = on_gpu(1024, 1024, dtype=torch.float32)  # 4 MiB
    row = on_gpu(1024, dtype=torch.float32)
    cases: list[tuple[Callable[[], Any], str, int]] = [
        (lambda: x + x, "elementwise", 12 * MIB),
        (lambda: x.add_(x), "elementwise", 12 * MIB),
        (lambda: x.zero_(), "elementwise", 4 * MIB),
        (lambda: x.copy_(row), "copies", 4 * MIB + 4096),
        (lambda: x + row.expand(1024, 1024), "elementwise", 8 * MIB + 4096),
        (lambda: x.sum(), "reductions", 4 * MIB + 4),
        (lambda: x.bfloat16(), "copies", 6 * MIB),
        (lambda: torch.ones_like(x), "elementwise", 4 * MIB),
    ]
    for run, kind, num_bytes in cases:
        (found,) = works(run)
        assert (found.kind, found.num_bytes) == (kind, num_bytes)


def test_of_a_table_only_the_rows_that_are_taken_are_read(works: Any) -> None:
    table = on_gpu(100_000, 64, dtype=torch.float32)
    ids = torch.zeros(16, dtype=torch.int64, device="cuda")
    (found,) = works(lambda: F.embedding(ids, table))
    assert found.kind == "lookups"
    assert found.num_bytes == 2 * 16 * 64 * 4 + 16 * 8


def test_views_and_empty_memory_launch_nothing(works: Any) -> None:
    x = on_gpu(8, 8)
    assert works(lambda: (x.t(), x.view(-1), x[0], x.detach(), torch.empty_like(x))) == []
    assert works(lambda: torch.ones(3) + 1) == []  # on the CPU
    assert launches_nothing(torch.ops.aten.view.default)
    assert not launches_nothing(torch.ops.aten.add.Tensor)


def test_bytes_of_expanded_dims_count_once() -> None:
    with fake_mode():
        x: Any = torch.empty(4, 1).expand(4, 1000)
    assert bytes_touched(x._fake_meta) == 16


def test_formulas_are_those_of_torch() -> None:
    from torch.utils.flop_counter import flop_registry

    assert flop_registry.items() <= flop_formulas().items()
