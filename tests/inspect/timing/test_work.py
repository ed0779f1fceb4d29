"""FLOPs and bytes of calls, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.quantized_tensor import Quantized
from torchfake import fake_mode, profiles
from torchfake.inspect.arithmetic.matrices import Product
from torchfake.inspect.timing.commands import LAUNCH, CommandRecorder, Place
from torchfake.inspect.timing.efficiency import seconds_of, shares_of
from torchfake.inspect.timing.hardware import HARDWARE
from torchfake.inspect.timing.work import Work
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
    product = Product(1, 64, 4096, 1024)
    assert found == Work(
        "matrix products", int(product.flops), num_bytes, torch.bfloat16, products=(product,)
    )
    batch = on_gpu(8, 64, 32)
    (found,) = works(lambda: batch @ on_gpu(8, 32, 16))
    assert found.products == (Product(8, 64, 16, 32),)
    assert found.flops == 2 * 8 * 64 * 32 * 16


def test_what_another_class_takes_apart_is_timed_as_its_parts(works: Any) -> None:
    weight = Quantized.of(on_gpu(64, 64))
    result, x = on_gpu(16, 64), on_gpu(16, 64)
    found = works(lambda: result.addmm_(x, weight))
    assert sum(work.flops for work in found) == 2 * 16 * 64 * 64
    assert "operators whose FLOPs are not known" not in {work.kind for work in found}


def test_products_with_vectors_take_the_time_of_their_bytes(works: Any) -> None:
    """They have no tiles."""
    gpu, hardware = profiles()["h100-80gb"], HARDWARE["h100-80gb"]
    assert hardware is not None
    (found,) = works(lambda: on_gpu(4096, 4096) @ on_gpu(4096))
    assert (found.kind, found.flops, found.products) == ("matrix products", 2 * 4096**2, ())
    seconds = seconds_of(found, gpu, hardware, shares_of(gpu))
    assert seconds == seconds_of(found._replace(flops=0), gpu, hardware, shares_of(gpu))


def test_products_of_int8_are_given_the_rate_of_float16(works: Any) -> None:
    gpu, hardware = profiles()["h100-80gb"], HARDWARE["h100-80gb"]
    assert hardware is not None
    a, b = (on_gpu(8192, 8192, dtype=torch.int8) for _ in range(2))
    (found,) = works(lambda: torch._int_mm(a, b))
    times = [
        seconds_of(found._replace(dtype=dtype), gpu, hardware, shares_of(gpu))
        for dtype in (torch.int8, torch.float16)
    ]
    assert found.dtype is torch.int8
    assert times[0] == times[1]


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


def test_batch_norms_read_twice_in_training_only(works: Any) -> None:
    x, row = on_gpu(8, 64, 32, 32, dtype=torch.float16), on_gpu(64, dtype=torch.float32)
    for training, kind, times in ((True, "reductions", 3), (False, "elementwise", 2)):
        (found,) = works(lambda t=training: F.batch_norm(x, row, row, row, row, t))
        assert found.kind == kind
        assert times * x.nbytes <= found.num_bytes < times * x.nbytes + 4096


def test_whole_vectors(works: Any) -> None:
    x = on_gpu(64, 64, 32, 32)
    cases: list[tuple[Callable[[], Any], bool]] = [
        (lambda: x + x, True),
        (lambda: x * 2, True),
        (lambda: x + on_gpu(64, 1, 1), False),
        (lambda: x + on_gpu(64, 64, 32, 32, dtype=torch.float32), False),
        (lambda: x.float(), True),
        (lambda: x.transpose(1, 2).contiguous(), False),
        (lambda: torch.cat([x, x]), True),
    ]
    for run, is_uniform in cases:
        (found,) = works(run)
        assert found.is_uniform is is_uniform


@pytest.mark.parametrize(
    ("options", "size", "is_short"),
    [
        ({"padding": 1}, 3, True),
        ({"padding": 1, "stride": 2}, 3, False),
        ({"padding": 2, "dilation": 2}, 3, False),
        ({"padding": 1, "groups": 2}, 3, False),
        ({}, 1, False),
    ],
)
def test_winograd_is_for_filters_of_three_by_three(
    works: Any, options: dict[str, int], size: int, is_short: bool
) -> None:
    weight = on_gpu(64, 64 // options.get("groups", 1), size, size)
    found = works(lambda: F.conv2d(on_gpu(4, 64, 16, 16), weight, **options))
    assert found[-1].has_short_filters is is_short


def test_the_layout_of_images(works: Any) -> None:
    weight = on_gpu(64, 64, 3, 3)
    for layout, is_first in ((torch.contiguous_format, True), (torch.channels_last, False)):
        x = on_gpu(4, 64, 16, 16).contiguous(memory_format=layout)
        (found,) = works(lambda x=x: F.conv2d(x, weight))
        assert found.is_channels_first is is_first
    (flat,) = works(lambda: F.conv1d(on_gpu(4, 64, 16), on_gpu(64, 64, 3)))
    assert not flat.is_channels_first
