"""Figures of servers that others have published, and what a serving plan says of the same.

TensorRT-LLM, docs/source/performance.md of v0.5 and v0.6.1: static batches, all sequences alike,
output tokens over the whole time; first tokens at batch 1. docs/source/performance/perf-overview.md
of v1.0: 3,000 requests that are all there at the beginning (``trtllm-bench throughput``).

NVIDIA NIM 1.8.0, "Performance" of its documentation of LLMs. vLLM, nightly benchmark of build 9515.
Memory: what vLLM logged in vllm-project/vllm#10517, #6746, #10511, #13061 and #21348, in GiB.

Rows of times whose text has an even CRC-32 are those that the constants of an engine were chosen
on; the others were only compared. Further rows, and how they are divided, are in ``serving_more``
and ``serving_first``. The constants of memory are those of the logs of #10517 and #10511.

TensorRT-LLM stores keys and values in fp8 where weights are narrow, and so do NVIDIA's checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.published.run import error_bar
from tests.published.serving_first import FIRST
from tests.published.serving_more import MORE
from tests.published.serving_rows import (
    On,
    Row,
    activations,
    batch_of,
    cache_left,
    cache_of,
    first_token,
    full_load,
    memory_row,
    peak,
    seen_by_users,
    weights,
    weights_of_405b,
    whole_batch,
)
from torchfake.distributed.passes.loads import Request

_H100_GPTJ = On("GPT-J 6B", "h100-80gb", 1, "fp8", "fp8")
_H100_7B = On("LLaMA 7B", "h100-80gb", 1, "fp8", "fp8")
_L40S_7B = On("LLaMA 7B", "l40s-48gb", 1, "fp8", "fp8")
_A100_GPTJ, _A100_7B = On("GPT-J 6B", "a100-80gb"), On("LLaMA 7B", "a100-80gb")
_A100_70B = On("LLaMA 70B", "a100-80gb", 4)
_NIM = On("Llama 3.3 70B", "h100-80gb", 2, "fp8", "fp8")
_RTX = On("Llama 3.1 8B", "rtx3090-24gb", pass_tokens=20000, prompt=20000, sequences=256)
_H100_8B = On("Llama 3.1 8B", "h100-80gb", sequences=256)
_RTX_14B = On("Qwen2.5 14B", "rtx4090-24gb", 2, pass_tokens=2048, utilization=0.98)
_235B = On("Qwen3-235B-A22B", "h100-80gb", 4, "fp8-block", sequences=1024)

ROWS = [
    batch_of(_H100_GPTJ, 64, 128, 128, 10907),
    batch_of(_H100_GPTJ, 64, 128, 2048, 6179),
    batch_of(_H100_GPTJ, 64, 2048, 128, 2229),
    batch_of(_H100_GPTJ, 64, 2048, 2048, 2980),
    batch_of(_H100_7B, 64, 128, 128, 9193),
    batch_of(_H100_7B, 64, 128, 2048, 5367),
    batch_of(_H100_7B, 64, 2048, 128, 2058),
    batch_of(_H100_7B, 32, 2048, 2048, 2230),
    batch_of(_L40S_7B, 64, 128, 128, 3240),
    batch_of(_L40S_7B, 64, 128, 2048, 1622),
    batch_of(_L40S_7B, 32, 2048, 128, 581),
    batch_of(_L40S_7B, 16, 2048, 2048, 531),
    batch_of(_A100_GPTJ, 512, 128, 128, 6374),
    batch_of(_A100_GPTJ, 60, 2048, 128, 670),
    batch_of(_A100_7B, 384, 128, 128, 5586),
    batch_of(_A100_7B, 60, 128, 2048, 1928),
    batch_of(_A100_7B, 52, 2048, 128, 591),
    batch_of(_A100_70B, 1280, 128, 128, 4 * 670),
    batch_of(_A100_70B, 240, 128, 2048, 4 * 525),
    first_token(_H100_GPTJ, 128, 7),
    first_token(_H100_GPTJ, 2048, 29),
    first_token(_H100_7B, 128, 7),
    first_token(_H100_7B, 2048, 36),
    first_token(_A100_7B, 128, 16),
    first_token(_A100_7B, 2048, 133),
    first_token(_A100_70B, 128, 47),
    first_token(_A100_70B, 2048, 377),
    full_load(On("Llama 3.1 8B", "h100-80gb", 1, "fp8", "fp8"), 1000, 1000, 15220),
    full_load(On("Llama 3.1 8B", "h200-141gb", 1, "fp8", "fp8"), 1000, 1000, 17744),
    full_load(_NIM, 1000, 1000, 4205),
    full_load(On("Llama 3.3 70B", "h200-141gb", 1, "fp8", "fp8"), 2048, 2048, 2003, 1500),
    full_load(On("Llama 3.3 70B", "b200-180gb", 1, "nvfp4", "fp8"), 1000, 1000, 7007),
    full_load(On("Llama 3.1 405B", "h100-80gb", 8, "fp8", "fp8"), 1000, 1000, 2919),
    full_load(On("Qwen3-30B-A3B", "b200-180gb", 1, "nvfp4", "fp8"), 1000, 1000, 25828),
    *seen_by_users(_NIM, 1, Request(5000, 500), 406.8, 18.58, 51.7),
    *seen_by_users(_NIM, 25, Request(5000, 500), 688.7, 38.75, 623.4),
    whole_batch(On("Llama 3 70B", "h200-141gb", 4), 8, Request(32, 128), 2077.5),
    *MORE,
    *FIRST,
    memory_row(_RTX, "weights", 14.99, weights),
    memory_row(_RTX, "weights and the peak of a pass", 17.06, peak, was_read=True),
    memory_row(_RTX, "cache", 3.81, cache_left, was_read=True),
    memory_row(_RTX, "cache of 31,232 tokens", 3.81, cache_of(31232)),
    Row("memory", "Llama 3.1 405B in fp8, 8 h100-80gb, weights", 57.75, "GiB", weights_of_405b),
    memory_row(_H100_8B, "activations", 1.26, activations, was_read=True),
    memory_row(_H100_8B._replace(tp=2), "activations", 1.26, activations),
    memory_row(_RTX_14B, "weights", 13.95, weights),
    memory_row(_RTX_14B, "cache", 8.69, cache_left),
    memory_row(_235B, "cache of 178,880 tokens", 8.11, cache_of(178880)),
    memory_row(_235B, "cache", 8.11, cache_left, unlike="no goal: with LMCache's connector"),
]  # fmt: skip

TIMES = ("batch", "first", "load", "users")


def ranked(found: list[tuple[Row, float]]) -> tuple[int, int]:
    """How many pairs of GPUs and layouts are in the right order, by tokens/s of each GPU, and how
    many there are: of one model and equal lengths, more than 3 % apart.
    """
    right = pairs = 0
    for i, (row, ratio) in enumerate(found):
        for other, other_ratio in found[:i]:
            if row.subject and row.subject == other.subject:
                published = row.published / row.num_gpus * other.num_gpus / other.published
                if abs(published - 1) > 0.03:
                    pairs += 1
                    right += (published > 1) == (published * ratio / other_ratio > 1)
    return right, pairs


def has_experts(row: Row) -> bool:
    """Whether the model of a row is a mixture of experts."""
    return row.setting.startswith(("Qwen3-30B", "Qwen3-235B", "gpt-oss", "DeepSeek", "Mixtral"))


KINDS = {
    "batch": "static batches",
    "load": "full load",
    "users": "what users see",
    "first": "first token of one user",
}

HALF, MOST = 0.10, 0.20
"""The goals: half of the held-out rows of a kind within the first share, nine in ten within the
second; first tokens of one user are to be within the second alone."""


class Result(NamedTuple):
    """How far held-out rows of one kind are off."""

    number: int
    half: float
    most: float  # of nine in ten
    meets: bool  # the goals


def results(found: list[tuple[Row, float]]) -> dict[str, Result]:
    """The held-out rows of times, by kind."""
    by_kind: dict[str, list[tuple[Row, float]]] = {}
    for row, ratio in found:
        if row.kept_back and row.kind in KINDS:
            experts = "with experts" if has_experts(row) else "without experts"
            for name in (f"{KINDS[row.kind]}, {experts}", f"all, {experts}"):
                by_kind.setdefault(name, []).append((row, ratio))
    return {name: _result(by_kind[name]) for name in sorted(by_kind, key=_order)}


def _order(name: str) -> tuple[bool, str]:
    return name.startswith("all"), name


def _result(rows: list[tuple[Row, float]]) -> Result:
    half, most = error_bar([ratio for _, ratio in rows])
    is_first = all(row.kind == "first" for row, _ in rows)
    return Result(len(rows), half, most, most <= MOST and (is_first or half <= HALF))


def goals(found: list[tuple[Row, float]]) -> Iterator[str]:
    """The lines of the table of goals of docs/serving.md."""
    yield "| held out | rows | half within | nine in ten within | goal |"
    yield "|---|---|---|---|---|"
    for name, (number, half, most, meets) in results(found).items():
        yield f"| {name} | {number} | {half:.1%} | {most:.1%} | {'met' if meets else 'missed'} |"


def use_of(row: Row) -> str:
    """What a row is for."""
    return row.unlike or ("held out" if row.kept_back else "")


def table() -> Iterator[str]:
    """The lines of the table of docs/serving.md, and what follows from it."""
    yield "| setting | published | plan | ratio | |"
    yield "|---|---|---|---|---|"
    found = []
    for row in ROWS:
        estimate = row.estimated(None)
        found.append((row, estimate / row.published))
        shown = f"{estimate:,.0f}" if estimate >= 1000 else f"{estimate:.4g}"
        published = f"{row.published:,.4g}" if row.published < 1000 else f"{row.published:,.0f}"
        ratio = f"{estimate / row.published:.2f}"
        yield f"| {row.setting} | {published} {row.unit} | {shown} | {ratio} | {use_of(row)} |"
    yield ""
    for name, is_kept in (("chosen on", False), ("held out", True)):
        for kinds in (TIMES, ("memory",)):
            rows = [(row, r) for row, r in found if row.kept_back is is_kept and not row.unlike]
            ratios = [r for row, r in rows if row.kind in kinds]
            half, most = error_bar(ratios)
            what = "memory" if kinds == ("memory",) else "times"
            yield (
                f"{name}, {what}: {len(ratios)} rows, half within {half:.1%}, nine in ten within "
                f"{most:.1%}, worst {max(abs(ratio - 1) for ratio in ratios):.0%}"
            )
    yield ""
    yield from goals(found)
    yield ""
    right, pairs = ranked(found)
    yield f"pairs of GPUs and layouts that differ by more than 3 %: {right} of {pairs} in order"


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)  # noqa: T201
