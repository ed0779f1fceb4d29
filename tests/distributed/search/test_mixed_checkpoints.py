"""Blocks of one model that are checkpointed in different ways, against all numbers of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

from tests.distributed.parallelize import laid_out_models as models  # noqa: E402
from torchfake import fake_mode, profiles  # noqa: E402
from torchfake.distributed import TargetPlan, plan_target, search_layouts  # noqa: E402
from torchfake.distributed.search import search, trials  # noqa: E402
from torchfake.distributed.search.candidates import Candidate  # noqa: E402
from torchfake.distributed.search.extrapolation import Layers, depths_of  # noqa: E402
from torchfake.distributed.search.measurements import measured  # noqa: E402

TARGET = "transformers:LlamaForCausalLM"
DEPTH = 7
SIZES = (
    "hidden_size=256", f"num_hidden_layers={DEPTH}", "num_attention_heads=4",
    "num_key_value_heads=2", "intermediate_size=1024", "vocab_size=100",
)  # fmt: skip
STEP: dict[str, Any] = {"batch": 8, "seq": 4096, "overrides": SIZES}
WAYS = ("none", "full")


@cache
def with_full(number: int, zero: int | None = None) -> TargetPlan:
    """With so many of the blocks checkpointed, the first ones."""
    layout: dict[str, Any] = {"mesh": {"dp": 2}, "checkpoint": number, "zero": zero}
    return plan_target(TARGET, **layout, micro_batch=4, gpu="h100-80gb", **STEP)


def reserved(found: TargetPlan) -> int:
    assert found.plan.peak_reserved_bytes is not None
    return found.plan.peak_reserved_bytes


@pytest.fixture
def one_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches try one mesh and one micro-batch, those of `with_full`."""

    def only(gpus: int, *_: Any) -> list[Candidate]:
        return [Candidate(2, 1, way, 4) for way in WAYS] if gpus == 2 else []

    monkeypatch.setattr(search, "candidates", only)
    monkeypatch.setattr(trials, "candidates", only)


def test_more_checkpoints_need_less_memory_and_more_time() -> None:
    found = [with_full(number) for number in range(DEPTH + 1)]
    peaks = [plan.plan.peak_bytes for plan in found]
    seconds = [plan.step_seconds or 0.0 for plan in found]
    assert peaks[:-1] == sorted(peaks[:-1], reverse=True)
    assert seconds == sorted(seconds)


@pytest.mark.usefixtures("one_layout")
def test_as_few_blocks_as_fit_are_checkpointed() -> None:
    budget = (reserved(with_full(3)) + reserved(with_full(4))) // 2
    gpu = profiles()["h100-80gb"]._replace(total_memory=(1 << 30) + budget)
    found = search_layouts(TARGET, gpus=2, gpu=gpu, checkpoints=WAYS, **STEP)
    fewest = next(n for n in range(DEPTH + 1) if reserved(with_full(n)) <= budget)
    assert found.fastest is not None
    assert found.fastest.strategy.checkpoint == f"full:0-{fewest - 1}"
    assert f"    for i in range({fewest}):\n        model.model.layers[i] =" in found.fastest.code
    (row,) = (r for r in found.rows if r.candidate.checkpoint == f"full:0-{fewest - 1}")
    assert row.taken is not None
    assert not row.taken.is_extrapolated
    assert row.taken.reserved_bytes == reserved(with_full(fewest, row.candidate.zero))


def test_blocks_are_weighed_each_by_its_own() -> None:
    """Of DeepSeek, a dense layer and those of experts."""
    sizes = (
        "hidden_size=64", "num_hidden_layers=3", "num_attention_heads=4", "num_key_value_heads=4",
        "intermediate_size=512", "vocab_size=64", "n_routed_experts=8", "moe_intermediate_size=32",
        "first_k_dense_replace=1", "n_group=2", "topk_group=1", "num_experts_per_tok=2",
        "kv_lora_rank=16", "q_lora_rank=32", "qk_nope_head_dim=16", "qk_rope_head_dim=8",
        "v_head_dim=16",
    )  # fmt: skip
    names = [f"model.layers.{i}" for i in range(3)]
    none, full = (
        measured(
            plan_target(
                "transformers:DeepseekV3ForCausalLM", mesh={"dp": 2}, batch=2, seq=256,
                overrides=sizes, checkpoint=checkpoint, precision="fp32",
            ),
            names,
        ).blocks
        for checkpoint in ("none", "full")
    )  # fmt: skip
    assert all(block.repeated_seconds == 0 for block in none)
    assert all(block.repeated_seconds > 0 for block in full)
    assert all(a.kept_bytes > b.kept_bytes for a, b in zip(none, full, strict=True))
    assert full[0].repeated_seconds != pytest.approx(full[1].repeated_seconds, rel=0.1)
    assert full[1].repeated_seconds == pytest.approx(full[2].repeated_seconds, rel=0.1)


def test_layers_that_are_unlike_are_not_extrapolated() -> None:
    def depths(build: Any, depth: int) -> tuple[int, ...]:
        with fake_mode():
            return depths_of(Layers.of(build()), depth)

    class Windowed(nn.Module):
        def __init__(self, windows: list[bool]) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in windows)
            for place, (layer, is_windowed) in enumerate(zip(self.layers, windows, strict=True)):
                layer.layer_idx, layer.is_windowed = place, is_windowed

    assert depths(lambda: models.llama(num_hidden_layers=9), 9) == (3, 4, 5)
    assert depths(lambda: Windowed([False] * 9), 9) == (3, 4, 5)
    assert depths(lambda: Windowed([True] * 2 + [False] * 7), 9) == (5, 6, 7)
    assert depths(lambda: Windowed([True, False] * 5), 10) == ()
    assert depths(lambda: Windowed([False] * 5 + [True] + [False] * 3), 9) == ()
    assert depths(models.t5, 2) == ()
