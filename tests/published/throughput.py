"""Throughput that others have measured, and what a plan says of the same step.

MPT: mosaicml/llm-foundry, scripts/train/benchmarking/README.md, of 2023: torch 1.13 on A100 and 2.0
on H100, with Triton's FlashAttention of the first kind, whose share of the peak is the one that
Dao 2023, "FlashAttention-2", gives for it (25 to 40 % on A100; half of that on H100).

torchtitan: benchmarks/llama3_h100_202412_torchtitan.md: H100 of 500 W with HBM2e of 2.4 TB/s, whose
peak lies between those of the SXM (989) and the NVL (835 TFLOP/s) cards, as that page says; and
docs/performance.md of April 2024: 64 A100, whose files of configuration do not compile.

fms-fsdp: "Maximizing training throughput using PyTorch FSDP", pytorch.org/blog, March 2024, which
does not compile either.

KempnerForge: benchmarks/mfu_scaling/mfu_scaling.md of April 2026, compiled, for the order alone.

Shares of peaks were chosen with the rows of MPT and of H100 in torchtitan that are not `kept_back`,
before the others were run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from tests.published import llamas, mpt
from torchfake import profiles
from torchfake.inspect.timing.collectives import Links
from torchfake.inspect.timing.efficiency import Shares, shares_of
from torchfake.inspect.timing.hardware import HARDWARE, Hardware

_FIRST_FLASH = {"a100": (0.40, 0.32), "h100": (0.20, 0.16)}


class Timing(NamedTuple):
    """What was found of a row."""

    tokens_per_second: float  # of a GPU
    exposed: float  # the share of the step that waits for communication


@dataclass(frozen=True)
class MptRow:
    """A line of LLM Foundry's tables."""

    size: str
    length: int
    num_gpus: int
    gpu: str
    batch: int  # of a micro-batch on each GPU
    accumulate: int
    checkpoints: bool
    published: int  # tokens/s of a GPU
    kept_back: bool = False
    is_compiled: bool = False
    pure: bool = False

    @property
    def setting(self) -> str:
        kind = "checkpointing" if self.checkpoints else "no checkpointing"
        return f"MPT {self.size}, {self.num_gpus} {self.gpu}, {self.batch} x {self.length}, {kind}"

    @property
    def subject(self) -> tuple[str, int, str]:
        """What layouts are compared of."""
        return self.size, self.length, self.gpu

    def timing(self) -> Timing:
        options = {"checkpoints": self.checkpoints, "pure": self.pure}
        found = mpt.planned(self.size, self.length, self.num_gpus, self.gpu, self.batch, **options)
        network = 50e9 if self.gpu.startswith("h100") else 25e9  # 1600 Gb/s a node, RoCE
        links = Links(HARDWARE[self.gpu].link_bytes, network)
        schedule = found.highest.schedule(found.layout, links, shares=self._shares())
        assert schedule is not None
        after = schedule.seconds_in("optimizer")
        step = (schedule.seconds - after) * self.accumulate + after
        tokens = self.batch * self.length * self.accumulate
        return Timing(tokens / step, schedule.exposed_seconds / schedule.seconds)

    def _shares(self) -> Shares:
        shares = shares_of(profiles()[self.gpu])
        kernel = _FIRST_FLASH[self.gpu[:4]]
        return shares._replace(attention=dict.fromkeys(shares.attention, kernel))


@dataclass(frozen=True)
class LlamaRow:
    """A line of a table about Llamas in plain PyTorch."""

    model: str  # a key of llamas.SIZES
    mesh: tuple[tuple[str, int], ...]
    gpu: str
    batch: int  # of a micro-batch on each data rank
    length: int
    checkpoint: str
    published: int  # tokens/s of a GPU
    kept_back: bool = True
    is_compiled: bool = False  # KempnerForge's: its time is not told, layouts are ranked
    network_bytes: float = 50e9  # bytes/s of a GPU between nodes
    gpus_per_node: int = 8
    reduced: torch.dtype = torch.float32
    accumulate: int = 1
    norm: llamas.Norm = nn.RMSNorm

    @property
    def setting(self) -> str:
        axes = " x ".join(f"{name} {size}" for name, size in self.mesh)
        kept = {"none": "no checkpointing", "full": "checkpointing"}
        how = kept.get(self.checkpoint, f"{self.checkpoint} checkpointing")
        how = how.replace("every second block checkpointing", "every second block checkpointed")
        return f"{self.model}, {self.gpu}, {axes}, {self.batch} x {self.length}, {how}"

    @property
    def subject(self) -> tuple[str, int, str]:
        """What layouts are compared of."""
        return self.model, self.length, f"{self.gpu}, compiled" if self.is_compiled else self.gpu

    def timing(self) -> Timing:
        found = llamas.planned(
            self.model, dict(self.mesh), self.batch, self.length, self.gpu,
            checkpoint=self.checkpoint, reduced=self.reduced, accumulate=self.accumulate,
            norm=self.norm, is_pure=self.is_compiled,
        )  # fmt: skip
        links = Links(HARDWARE[self.gpu].link_bytes, self.network_bytes, self.gpus_per_node)
        schedule = found.highest.schedule(found.layout, links)
        assert schedule is not None
        tokens = self.batch * self.length * self.accumulate / dict(self.mesh).get("tp", 1)
        return Timing(tokens / schedule.seconds, schedule.exposed_seconds / schedule.seconds)


def in_500_watts() -> Hardware:
    """The figures of torchtitan's H100, which has less power and memory of another kind."""
    sxm = HARDWARE["h100-80gb"]
    flops = {dtype: peak * (989.4 + 835) / 2 / 989.4 for dtype, peak in sxm.flops.items()}
    return sxm._replace(memory_bytes=2.4e12, flops=flops)


@dataclass(frozen=True)
class TitanRow:
    """A line of torchtitan's tables of H100 with less power."""

    num_gpus: int
    published: int  # tokens/s of a GPU
    kept_back: bool = False
    is_compiled: bool = False

    @property
    def setting(self) -> str:
        return f"Llama 3.1 8B, {self.num_gpus} H100 of 500 W, 2 x 8192, selective checkpointing"

    @property
    def subject(self) -> tuple[str, int, str]:
        """What layouts are compared of."""
        return "Llama 3.1 8B", 8192, "H100 of 500 W"

    def timing(self) -> Timing:
        layout = ("Llama 3.1 8B", {"dp": self.num_gpus}, 2, 8192, llamas.H100_OF_96_GB)
        found = llamas.planned(*layout, checkpoint="selective")
        schedule = found.highest.schedule(found.layout, hardware=in_500_watts())
        assert schedule is not None
        seconds = schedule.seconds
        return Timing(2 * 8192 / seconds, schedule.exposed_seconds / seconds)


Row = MptRow | TitanRow | LlamaRow


def in_titan(model: str, batch: int, length: int, checkpoint: str, published: int) -> LlamaRow:
    """64 A100 of 80 GB; the network is not named: 200 Gb/s for each, as in NVIDIA's DGX A100."""
    layout = ((("dp", 64),), "a100-80gb", batch, length, checkpoint)
    return LlamaRow(model, *layout, published, network_bytes=25e9)


def in_fms(model: str, num_gpus: int, checkpoint: str, published: int) -> LlamaRow:
    """Batches of 2; 128 A100 with 400 Gb/s for a node, or 96 H100 with 800 Gb/s; models up to 13B
    are sharded in nodes of 8. Of the 13B, every second block: HFU / MFU is 1.15 in that table.
    """
    gpu, network = ("a100-80gb", 50e9 / 8) if num_gpus == 128 else ("h100-80gb", 100e9 / 8)
    is_small = model in ("Llama 2 7B", "Llama 2 13B")
    mesh = (("replicate", num_gpus // 8), ("dp", 8)) if is_small else (("dp", num_gpus),)
    return LlamaRow(
        model, mesh, gpu, 2, 4096, checkpoint, published, network_bytes=network,
        reduced=torch.bfloat16, norm=llamas.WrittenOutNorm,
    )  # fmt: skip


def in_forge(model: str, published: float, accumulate: int, **mesh: int) -> LlamaRow:
    """H200 in nodes of 4, 400 Gb/s for each (NDR), all of it bfloat16, compiled."""
    num_gpus = math.prod(mesh.values())
    batch = 2 if mesh in ({"dp": 1}, {"dp": 2}) else 4
    return LlamaRow(
        model, tuple(mesh.items()), "h200-141gb", batch, 4096, "full", round(published / num_gpus),
        kept_back=False, is_compiled=True, gpus_per_node=4, accumulate=accumulate,
    )  # fmt: skip


_H, _A, _S = "h100-80gb", "a100-80gb", "a100-40gb"

ROWS: list[Row] = [
    in_titan("Llama 3 8B", 1, 8192, "every second block", 2904),
    in_titan("Llama 3 8B", 1, 8192, "selective", 2973),
    in_titan("Llama 3 70B", 1, 8192, "full", 331),
    in_titan("Llama 2 13B", 2, 4096, "none", 2162),
    in_titan("Llama 2 13B", 2, 4096, "every second block", 1914),
    in_titan("Llama 2 13B", 2, 4096, "selective", 1904),
    in_titan("Llama 2 70B", 1, 4096, "selective", 355),
    in_titan("Llama 2 70B", 2, 4096, "full", 353),
    in_fms("Llama 2 7B", 128, "none", 3700),
    in_fms("Llama 2 13B", 128, "every second block", 1800),
    in_fms("Llama 2 34B", 128, "full", 700),
    in_fms("Llama 2 70B", 128, "full", 370),
    in_fms("Llama 2 7B", 96, "none", 7500),
    in_fms("Llama 2 13B", 96, "every second block", 3800),
    in_fms("Llama 2 34B", 96, "full", 1550),
    in_fms("Llama 2 70B", 96, "full", 800),
    in_forge("Llama 3 8B", 10471, 4, dp=1),
    in_forge("Llama 3 8B", 18728, 4, dp=2),
    in_forge("Llama 3 8B", 13163, 2, tp=2),
    in_forge("Llama 3 8B", 38983, 2, dp=4),
    in_forge("Llama 3 8B", 25135, 2, tp=4),
    in_forge("Llama 3 8B", 25980, 2, dp=2, tp=2),
    in_forge("Llama 3 8B", 44299, 2, dp=2, tp=4),
    in_forge("Llama 3 8B", 82988, 2, dp=4, tp=4),
    in_forge("Llama 3 8B", 155917, 2, dp=8, tp=4),
    in_forge("Llama 3 13B", 27345, 4, dp=2, tp=4),
    in_forge("Llama 3 13B", 53814, 4, dp=4, tp=4),
    in_forge("Llama 3 13B", 104309, 4, dp=8, tp=4),
    TitanRow(8, 5762),
    TitanRow(128, 5605),
    MptRow("7b", 2048, 8, _H, 6, 1, False, 10643),
    MptRow("7b", 8192, 8, _H, 8, 2, True, 6935),
    MptRow("3b", 2048, 16, _H, 10, 3, False, 24142),
    MptRow("3b", 8192, 8, _H, 3, 6, False, 16578),
    MptRow("1b", 2048, 8, _H, 14, 1, False, 45455),
    MptRow("760m", 2048, 8, _H, 24, 2, False, 63147),
    MptRow("13b", 2048, 8, _H, 2, 1, False, 4792),
    MptRow("13b", 2048, 64, _H, 2, 1, False, 4800),
    MptRow("30b", 2048, 16, _H, 10, 3, True, 2263),
    MptRow("13b", 16384, 8, _H, 3, 3, True, 2985),
    MptRow("7b", 2048, 8, _A, 6, 2, False, 4641),
    MptRow("7b", 8192, 8, _A, 8, 2, True, 3206),
    MptRow("3b", 2048, 8, _A, 10, 2, False, 10811),
    MptRow("1b", 2048, 8, _A, 14, 4, False, 20513),
    MptRow("125m", 2048, 8, _A, 32, 2, False, 141737),
    MptRow("350m", 4096, 8, _A, 16, 2, False, 49555),
    MptRow("13b", 2048, 8, _A, 2, 3, False, 2262),
    MptRow("30b", 2048, 8, _A, 3, 21, True, 916),
    MptRow("3b", 32768, 8, _A, 3, 6, True, 3029),
    MptRow("7b", 2048, 64, _S, 18, 1, True, 3665, pure=True),
    MptRow("13b", 2048, 8, _S, 4, 16, True, 1668, pure=True),
    MptRow("13b", 2048, 32, _S, 14, 1, True, 1998, pure=True),
    MptRow("70b", 2048, 64, _H, 8, 4, True, 1039, True),
    MptRow("70b", 2048, 32, _H, 2, 16, True, 882, True),
    MptRow("30b", 8192, 8, _H, 1, 21, True, 1384, True),
    MptRow("30b", 2048, 32, _H, 14, 3, True, 2308, True),
    MptRow("30b", 2048, 8, _H, 3, 21, True, 2002, True),
    MptRow("13b", 4096, 8, _H, 10, 3, True, 4717, True),
    MptRow("7b", 1024, 8, _H, 64, 2, True, 10203, True),
    MptRow("7b", 4096, 8, _H, 16, 2, True, 8611, True),
    MptRow("3b", 2048, 64, _H, 6, 3, False, 22525, True),
    MptRow("3b", 2048, 32, _H, 6, 3, False, 23021, True),
    MptRow("3b", 512, 8, _H, 40, 6, False, 27965, True),
    MptRow("1b", 2048, 64, _H, 20, 1, False, 44402, True),
    MptRow("1b", 2048, 32, _H, 20, 1, False, 45130, True),
    MptRow("1b", 2048, 16, _H, 20, 1, False, 46037, True),
    MptRow("1b", 8192, 8, _H, 3, 4, False, 29157, True),
    MptRow("760m", 2048, 32, _H, 24, 1, False, 67971, True),
    MptRow("760m", 2048, 16, _H, 24, 1, False, 68551, True),
    MptRow("760m", 512, 8, _H, 96, 2, False, 83749, True),
    MptRow("70b", 2048, 64, _A, 8, 4, True, 410, True, pure=True),
    MptRow("70b", 2048, 32, _A, 2, 16, True, 373, True, pure=True),
    MptRow("30b", 8192, 8, _A, 1, 21, True, 574, True),
    MptRow("30b", 512, 8, _A, 12, 21, True, 967, True),
    MptRow("13b", 8192, 8, _A, 5, 3, True, 1795, True),
    MptRow("13b", 1024, 8, _A, 40, 3, True, 2330, True),
    MptRow("7b", 1024, 8, _A, 64, 2, True, 4357, True),
    MptRow("7b", 32768, 8, _A, 2, 2, True, 1672, True),
    MptRow("3b", 512, 8, _A, 40, 6, False, 12127, True),
    MptRow("1b", 16384, 8, _A, 2, 4, False, 9956, True),
    MptRow("760m", 4096, 8, _A, 12, 2, False, 27351, True),
    MptRow("350m", 1024, 8, _A, 64, 2, False, 64813, True),
    MptRow("125m", 8192, 8, _A, 8, 2, False, 90392, True),
    MptRow("70b", 2048, 128, _S, 4, 1, True, 376, True, pure=True),
    MptRow("70b", 2048, 64, _S, 2, 1, True, 276, True, pure=True),
    MptRow("30b", 2048, 32, _S, 4, 1, True, 857, True, pure=True),
    MptRow("13b", 2048, 128, _S, 16, 1, True, 1972, True, pure=True),
    MptRow("7b", 2048, 8, _S, 12, 4, True, 3679, True, pure=True),
    MptRow("7b", 16384, 8, _S, 1, 4, True, 2249, True, pure=True),
]
