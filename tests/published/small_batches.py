"""Times of inference that transformers has published, and what an estimate says of the same pass.

The rows are those of huggingface/transformers, docs/source/en/perf_torch_compile.md of 2023 (Apache
2.0), the columns without compilation: torch 2.0, float32, means of 300 passes on one image, and on
batches of 4 and 16 of it. With one image the host bounds the time, which launches kernels.

With the models whose name has an even CRC-32 the host's times of ``timing/efficiency`` were chosen,
by their rows of one image on the A100 and the V100, and the rate of products without tensor cores
and the clock of the T4 by all of their rows; the others are held out. Models had no fused
attention then, and are built so. MaskFormer and Mask2Former are left out: their parts in Python
depend on values; and so are two rows whose model is not named clearly.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from tests.published.run import by_use, error_bar
from torchfake import estimate, fake_mode, profiles
from torchfake.inspect.timing.schedule import schedule_of

BATCHES = (1, 4, 16)
GPUS = ("a100-40gb", "v100-32gb", "t4-16gb")


class Row(NamedTuple):
    """A model of the table, with its milliseconds by GPU, for each of `BATCHES`."""

    name: str
    milliseconds: tuple[tuple[float, ...], ...]
    size: tuple[int, int]  # pixels

    @property
    def is_held_out(self) -> bool:
        """Whether the row was not used to choose a time of the host."""
        return zlib.crc32(self.name.encode()) % 2 == 1

    def estimated(self, batch: int) -> list[float]:
        """The milliseconds of a batch on each GPU. The step is run once: kernels are the same."""
        with fake_mode():
            model = _BUILDERS[self.name]().eval()
            inputs = {"pixel_values": torch.empty(batch, 3, *self.size)}
            if self.name == "OwlViT":
                inputs["input_ids"] = torch.zeros(2 * batch, 16, dtype=torch.long)
        found = estimate(model, inputs, gpu=GPUS[0], mode="inference", answer="typical")
        each = [schedule_of(found.commands, profiles()[gpu]) for gpu in GPUS]
        return [schedule.seconds * 1e3 for schedule in each if schedule is not None]


ROWS = (
    Row("ViT", ((9.325, 14.832, 40.944), (10.495, 15.181, 52.209), (16.52, 43.653, 163.914)),
        (224, 224)),
    Row("BeiT", ((11.282, 13.205, 41.854), (11.347, 15.171, 53.938), (16.464, 52.007, 188.978)),
        (224, 224)),
    Row("ConvNeXT", ((10.41, 22.94, 82.258), (11.623, 29.574, 109.682), (32.932, 119.259, 422.886)),
        (224, 224)),
    Row("ResNet", ((6.531, 6.657, 7.018), (6.484, 6.109, 14.857), (6.031, 13.039, 44.114)),
        (224, 224)),
    Row("Segformer",
        ((11.759, 18.838, 37.005), (13.321, 16.787, 61.013), (16.116, 45.327, 192.412)),
        (512, 512)),
    Row("MobileNet", ((8.583, 14.174, 51.693), (9.217, 24.623, 93.129), (18.908, 74.289, 299.003)),
        (513, 513)),
    Row("OwlViT", ((24.978,), (25.769,), (53.634,)), (768, 768)),
    Row("DETR", ((34.619, 48.657, 164.382), (33.951, 88.529), (73.1, 277.85)), (800, 1066)),
)  # fmt: skip


def _owlvit() -> Any:
    from transformers import OwlViTConfig, OwlViTForObjectDetection

    return OwlViTForObjectDetection(_eager(OwlViTConfig()))


def _detr() -> Any:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(out_features=["stage4"])
    config = DetrConfig(use_timm_backbone=False, backbone_config=backbone, backbone=None)
    return DetrForObjectDetection(_eager(config))


def _of(model: str, config: str, **options: Any) -> Callable[[], Any]:
    """A function that builds a model of transformers without fused attention."""

    def build() -> Any:
        import transformers

        return getattr(transformers, model)(_eager(getattr(transformers, config)(**options)))

    return build


def _eager(config: Any) -> Any:
    config._attn_implementation = "eager"
    return config


_BUILDERS: dict[str, Callable[[], Any]] = {
    "ViT": _of("ViTForImageClassification", "ViTConfig"),
    "BeiT": _of("BeitForImageClassification", "BeitConfig", use_relative_position_bias=True,
                use_mask_token=False, num_labels=21841),
    "ConvNeXT": _of("ConvNextForImageClassification", "ConvNextConfig", depths=[3, 3, 27, 3],
                    hidden_sizes=[192, 384, 768, 1536]),
    "ResNet": _of("ResNetForImageClassification", "ResNetConfig"),
    "Segformer": _of("SegformerForSemanticSegmentation", "SegformerConfig", num_labels=150),
    "MobileNet": _of("MobileNetV2ForSemanticSegmentation", "MobileNetV2Config", num_labels=21,
                     output_stride=8),
    "OwlViT": _owlvit,
    "DETR": _detr,
}  # fmt: skip


def report() -> Iterator[str]:
    """The lines of the rows, and what follows from them, by batch."""
    found: dict[tuple[int, str], list[tuple[Row, float]]] = {}
    for row in ROWS:
        for index, batch in enumerate(BATCHES[: len(row.milliseconds[0])]):
            for gpu, published, ours in zip(
                GPUS, row.milliseconds, row.estimated(batch), strict=True
            ):
                if index < len(published):
                    ratio = ours / published[index]
                    found.setdefault((batch, gpu), []).append((row, ratio))
                    use = " held out" if row.is_held_out else ""
                    times = f"{published[index]} ms, estimate {ours:.1f}, {ratio:.2f}{use}"
                    yield f"{row.name}, {gpu}, batch {batch}: {times}"
    yield ""
    for (batch, gpu), rows in found.items():
        for name, some in by_use(rows):
            half, most = error_bar([ratio for _, ratio in some])
            text = f"{len(some)} rows, half within {half:.1%}, nine in ten within {most:.1%}"
            yield f"transformers on {gpu}, batch {batch}, {name}: {text}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in report():
        print(line, flush=True)  # noqa: T201
