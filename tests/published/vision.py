"""Times of timm's models that timm has published, and what an estimate says of the same step.

The rows are those of huggingface/pytorch-image-models, results/benchmark-*.csv (Apache 2.0), of the
models whose name has a CRC-32 that ends in 0 or 1: with 0 (an even one) the efficiencies of
``timing/efficiency`` were chosen, those with 1 are held out, and so are all rows of the RTX 5090.
timm's benchmark.py measured them in eager mode with autocast to float16;
training is forward, cross entropy, backward and a step of SGD with momentum.

What the torch of a table did not have is an option of its rows: torch 1.12 had no fused attention.
"""

from __future__ import annotations

import csv
import statistics
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from tests.published.run import by_use, error_bar, line_of
from torchfake import estimate, fake_mode

FOLDER = Path(__file__).parent / "timm_tables"


class Table(NamedTuple):
    """One of timm's tables."""

    mode: str  # infer or train
    gpu: str  # the name of a profile
    torch: str  # the version that it was measured on
    layout: str  # NHWC is channels_last
    is_held_out: bool = False
    has_fused_attention: bool = True

    @property
    def path(self) -> Path:
        name, _, _ = self.gpu.partition("-")
        return FOLDER / f"{self.mode}-{name}-torch{self.torch}-{self.layout}.csv"


TABLES = (
    Table("infer", "rtx4090-24gb", "2.4", "nhwc"),
    Table("infer", "rtx3090-24gb", "2.4", "nhwc"),
    Table("train", "rtx3090-24gb", "1.12", "nhwc", has_fused_attention=False),
    Table("infer", "rtx4090-24gb", "2.9", "nchw"),
    Table("infer", "rtx5090-32gb", "2.9", "nchw", is_held_out=True),
)


class Row(NamedTuple):
    """One model of a table."""

    table: Table
    model: str
    size: int  # pixels, of each side
    batch: int
    milliseconds: float

    @property
    def is_held_out(self) -> bool:
        """Whether the row was not used to choose an efficiency."""
        return self.table.is_held_out or zlib.crc32(self.model.encode()) % 2 == 1

    def estimated(self) -> float:
        """The milliseconds that an estimate gives."""
        model, x, labels = _built(self)
        gpu = self.table.gpu
        if self.table.mode == "infer":
            found = estimate(_Inference(model), x, gpu=gpu, mode="inference")
        else:
            found = estimate(_Training(model), x, labels, gpu=gpu, optimizer=_sgd, loss=_itself)
        assert found.step_seconds is not None
        return found.step_seconds * 1e3


def rows_of(table: Table) -> Iterator[Row]:
    """The rows of a table, in its order."""
    with table.path.open() as file:
        for each in csv.DictReader(file):
            sizes = int(each["size"]), int(each["batch"]), float(each["milliseconds"])
            yield Row(table, each["model"], *sizes)


class _Inference(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            return self.model(x)


class _Training(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model.train()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        with torch.autocast("cuda", torch.float16):
            return F.cross_entropy(self.model(x), labels)


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _itself(loss: Any) -> Any:
    return loss


def _built(row: Row) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The model, a batch of images and their labels."""
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(row.table.has_fused_attention)
    with fake_mode():
        try:
            model = timm.create_model(row.model, img_size=row.size)
        except TypeError:  # a convolutional network takes images of any size
            model = timm.create_model(row.model)
        x = torch.empty(row.batch, 3, row.size, row.size)
        if row.table.layout == "nhwc":
            layout = torch.channels_last
            model.to(memory_format=layout)
            x = x.contiguous(memory_format=layout)
        return model, x, torch.empty(row.batch, dtype=torch.long)


def report(table: Table) -> Iterator[str]:
    """The lines of a table's rows, and what follows from them."""
    found: list[tuple[Row, float]] = []
    for row in rows_of(table):
        try:
            found.append((row, row.estimated() / row.milliseconds))
        except RuntimeError as error:  # a name that timm has no more
            yield f"{row.model}: {error}"
    for row, ratio in found:
        yield line_of(f"{row.model} {row.batch} x {row.size}", row, ratio)
    yield ""
    for name, some in by_use(found):
        yield f"{table.path.stem}, {name}: {_summary(some)}"


def _summary(found: list[tuple[Row, float]]) -> str:
    ratios = [ratio for _, ratio in found]
    half, most = error_bar(ratios)
    published = [row.milliseconds / row.batch for row, _ in found]
    estimated = [row.milliseconds / row.batch * ratio for row, ratio in found]
    order = float(np.corrcoef(_ranks(published), _ranks(estimated))[0, 1])
    middle = statistics.median(ratios)
    return (
        f"{len(found)} rows, median {middle:.2f}, half within {half:.1%}, nine in ten within "
        f"{most:.1%}, Spearman {order:.3f}"
    )


def _ranks(values: list[float]) -> Any:
    return np.argsort(np.argsort(values))


def main(names: list[str]) -> None:
    """Print the tables whose files have one of `names` in their names, or all."""
    warnings.simplefilter("ignore")
    for table in TABLES:
        if not names or any(name in table.path.stem for name in names):
            for line in report(table):
                print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
