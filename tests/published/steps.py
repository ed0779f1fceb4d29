"""Times of single steps from other sources, and what an estimate says of them.

The list was written down before any of its rows was estimated; every second row is held out, as
`Step.is_held_out` says, and the others are those on which an efficiency may be chosen.

- NVIDIA/DeepLearningExamples at 729963d, PyTorch/Classification/ConvNets, README.md of each model:
  nvidia_tables/convnets.csv, one GPU, torch 1.9. Batches and layouts (channels last where
  precision is mixed) are those of its configs.yml; the images of EfficientNet-B4 have 380 pixels.
- diffusers, docs/source/en/tutorials/fast_diffusion.md: SDXL, 30 passes of two latents on an A100;
  what is measured has text encoders and a decoder too. The row in float32 is faster than float32
  without tensor cores can be, and is given TF32.
- diffusers, huggingface.co/datasets/diffusers/benchmarks, of 2025: one pass on an L40S; of the five
  last tables the one in the middle.
- huggingface/flux-fast, README.md: FLUX.1-schnell in float32 on an H100, four passes, with text
  encoders and decoder: "about 7.5 s".
- facebookresearch/dino, issue 69: ViT-S/16, 64 images on each of 8 V100, of which one is estimated.
- transformers, docs/source/ko/model_doc/bert.md: BERT in float16 on an A100, torch 2.2: passes, and
  passes with backward. Which head the model had is not told; it is given none.
- pytorch/ao, torchao/prototype/float8nocompile/README.md: Llama 3 8B in bfloat16, FSDP2 on 8 H100;
  of 500 W, as in torchtitan's tables of that time. The rows in float8 run Triton kernels of theirs.

Left out: MLPerf's logs, whose steps are CUDA graphs of fused kernels; Whisper's tables, which do
not tell how many tokens were written; torchvision's table of detectors, whose time includes reading
images, and whose shapes depend on values (its other references state no time).
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from tests.published import dino, llamas
from tests.published.diffusion_models import Pass, flux, ltx, sdxl
from tests.published.run import by_use, error_bar, line_of
from tests.published.throughput import in_500_watts
from torchfake import estimate, fake_mode

FOLDER = Path(__file__).parent / "nvidia_tables"

INFERENCE, TRAINING = "inference", "training"


class Step(NamedTuple):
    """One row."""

    kind: str  # of rows that are reported together
    setting: str
    milliseconds: float
    estimated: Callable[[], float]  # the milliseconds of an estimate
    is_held_out: bool = False


@contextmanager
def tf32(is_allowed: bool) -> Iterator[None]:
    """With products of float32 in TF32, as torch allowed before 1.12."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if is_allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


_NAMES = {
    "resnext101-32x4d": "resnext101_32x4d",
    "se-resnext101-32x4d": "seresnext101_32x4d",
    "efficientnet-b0": "efficientnet_b0",
    "efficientnet-b4": "efficientnet_b4",
}


def _convnet(row: dict[str, str]) -> float:
    """The milliseconds of a row of NVIDIA's tables."""
    import timm

    is_mixed, batch = row["precision"] == "AMP", int(row["batch"])
    size = 380 if row["model"].endswith("b4") else 224
    with fake_mode():
        model = timm.create_model(_NAMES.get(row["model"], row["model"]))
        x = torch.empty(batch, 3, size, size)
        if is_mixed:
            model.to(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
    autocast = torch.float16 if is_mixed else None
    options: dict[str, Any] = {"gpu": row["gpu"], "autocast": autocast}
    with tf32(row["precision"] == "TF32"):
        if row["mode"] == "infer":
            found = estimate(model.eval(), x, mode="inference", **options)
        else:
            optimizer = _rmsprop if row["model"].startswith("eff") else _sgd
            found = estimate(model.train(), x, loss=_loss, optimizer=optimizer, **options)
    assert found.step_seconds is not None
    return found.step_seconds * 1e3


def _loss(logits: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)


def _rmsprop(parameters: Any) -> Any:
    return torch.optim.RMSprop(parameters, lr=0.1, momentum=0.9, foreach=False)


def _passes(
    build: Callable[[], Pass], gpu: str, number: int = 1, is_tf32: bool = False
) -> Callable[[], float]:
    """Gives the milliseconds of so many passes of a model."""

    def estimated() -> float:
        with fake_mode():
            model, inputs = build()
        with tf32(is_tf32):
            found = estimate(model, inputs, gpu=gpu, mode="inference", answer="typical")
        assert found.step_seconds is not None
        return number * found.step_seconds * 1e3

    return estimated


def _dino() -> float:
    with fake_mode():
        step, inputs = dino.step_of(64)
    found = estimate(step, *inputs, gpu="v100-32gb", answer="typical")
    assert found.schedule is not None
    return found.schedule.seconds * 1e3


def _bert(batch: int, length: int, attention: str, *, trains: bool) -> float:
    from transformers import BertConfig, BertModel

    config = BertConfig()
    config._attn_implementation = attention
    with fake_mode():
        model = BertModel(config).half()
        shape = batch, length
        tokens = torch.zeros(shape, dtype=torch.long)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones(shape, dtype=torch.long)}
    options: dict[str, Any] = {"mode": "inference"}
    if trains:
        options = {"loss": lambda output: output.last_hidden_state.sum()}
    found = estimate(model, inputs, gpu="a100-80gb", answer="typical", **options)
    assert found.step_seconds is not None
    return found.step_seconds * 1e3


def _llama(checkpoint: str) -> float:
    found = llamas.planned(
        "Llama 3.1 8B", {"dp": 8}, 1, 4096, llamas.H100_OF_96_GB, checkpoint=checkpoint
    )
    schedule = found.highest.schedule(found.layout, hardware=in_500_watts())
    assert schedule is not None
    return schedule.seconds * 1e3


def _convnets() -> Iterator[Step]:
    with (FOLDER / "convnets.csv").open() as file:
        for row in csv.DictReader(file):
            what = TRAINING if row["mode"] == "train" else INFERENCE
            milliseconds = int(row["batch"]) / float(row["images_per_second"]) * 1e3
            kind = f"convolutional networks, {what}, {row['gpu']}"
            setting = f"{row['model']}, {row['precision']}, batch {row['batch']}, {what}"
            setting = f"{setting}, {row['gpu']}"
            yield Step(kind, setting, round(milliseconds, 2), partial(_convnet, row))


_BF16, _FP32 = torch.bfloat16, torch.float32
_SDXL = ((_FP32, False, 7.36), (_BF16, False, 4.63), (_BF16, True, 3.31))
"""Dtype, whether attention is fused, and the seconds of 30 passes."""


def _diffusion() -> Iterator[Step]:
    kind = "diffusion models, inference"
    for dtype, is_fused, seconds in _SDXL:
        run = _passes(partial(sdxl, dtype, 2, is_fused=is_fused), "a100-80gb", 30, dtype is _FP32)
        how = "fused attention" if is_fused else "attention written out"
        yield Step(kind, f"SDXL, {dtype}, {how}, 30 x 2, a100-80gb", seconds * 1e3, run)
    l40s = "l40s-48gb"
    run = _passes(partial(flux, _BF16, 512, is_guided=True), l40s)
    yield Step(kind, "FLUX.1-dev, torch.bfloat16, one pass, l40s-48gb", 532, run)
    yield Step(kind, "LTX-Video 13B, torch.bfloat16, one pass, l40s-48gb", 1634, _passes(ltx, l40s))
    run = _passes(partial(sdxl, _BF16, 1, is_fused=True), l40s)
    yield Step(kind, "SDXL, torch.bfloat16, one pass of 1, l40s-48gb", 74, run)
    run = _passes(partial(flux, _FP32, 256, is_guided=False), "h100-80gb", 4)
    yield Step(kind, "FLUX.1-schnell, torch.float32, 4 passes, h100-80gb", 7500, run)


_BERT_TRAINED = (
    (4, 256, 23, 17), (4, 512, 23, 18), (8, 256, 23, 18), (8, 512, 35, 25), (16, 256, 30, 24),
    (16, 512, 64, 44),
)  # fmt: skip
_BERT_RUN = (
    (1, 128, 5.736, 4.987), (1, 256, 5.689, 4.945), (2, 128, 6.154, 4.982), (2, 256, 6.201, 4.949),
    (4, 128, 6.049, 4.987), (4, 256, 6.285, 5.364),
)  # fmt: skip
"""Batch, length, and the milliseconds of attention written out and of fused attention."""


def _berts() -> Iterator[Step]:
    for what, rows in ((TRAINING, _BERT_TRAINED), (INFERENCE, _BERT_RUN)):
        for batch, length, *times in rows:
            for attention, milliseconds in zip(("eager", "sdpa"), times, strict=True):
                setting = f"BERT, float16, {batch} x {length}, {attention}, {what}, a100-80gb"
                run = partial(_bert, batch, length, attention, trains=what == TRAINING)
                yield Step(f"BERT, {what}, a100-80gb", setting, milliseconds, run)


def _others() -> Iterator[Step]:
    yield Step("others", "DINO, ViT-S/16, batch 64, training, v100-32gb", 617, _dino)
    for checkpoint, tokens in (("none", 5339), ("every second block", 4882.4), ("full", 4502)):
        setting = f"Llama 3.1 8B, 8 H100 of 500 W, 1 x 4096, checkpointing: {checkpoint}"
        yield Step("others", setting, round(4096e3 / tokens, 1), partial(_llama, checkpoint))


def steps() -> list[Step]:
    """All rows, every second one of which is held out."""
    rows = [*_convnets(), *_diffusion(), *_berts(), *_others()]
    return [row._replace(is_held_out=i % 2 == 1) for i, row in enumerate(rows)]


def report(names: list[str]) -> Iterator[str]:
    """The lines of the rows whose kind begins with one of `names`, and what follows by kind."""
    kinds: dict[str, list[tuple[Step, float]]] = {}
    for row in steps():
        if not names or any(row.kind.startswith(name) for name in names):
            ratio = row.estimated() / row.milliseconds
            kinds.setdefault(row.kind, []).append((row, ratio))
            yield line_of(row.setting, row, ratio)
    yield ""
    for kind, rows in kinds.items():
        for name, some in by_use(rows):
            ratios = [ratio for _, ratio in some]
            half, most = error_bar(ratios)
            ends = f"from {min(ratios):.2f} to {max(ratios):.2f}"
            bars = f"half within {half:.1%}, nine in ten within {most:.1%}, {ends}"
            yield f"{kind}, {name}: {len(some)} rows, {bars}"


if __name__ == "__main__":
    import sys

    warnings.simplefilter("ignore")
    for line in report(sys.argv[1:]):
        print(line, flush=True)  # noqa: T201
