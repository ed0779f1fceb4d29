"""Families, the layouts in which they are served, and what a rank of each of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.distributed.parallelize.token_layouts import routed
from tests.distributed.serving.families import (
    bamba,
    deepseek,
    gemma,
    jamba,
    llama,
    qwen2_vl,
    qwen3_moe,
)
from torchfake._core import gpu_profiles
from torchfake.distributed import Strategy
from torchfake.distributed.layout import layout_of
from torchfake.distributed.passes.rank_record import RankWork
from torchfake.distributed.passes.rank_work import rank_work
from torchfake.distributed.ranks.mailboxes import Mailboxes
from torchfake.distributed.ranks.run_rank import Job, run_rank
from torchfake.inspect.copies.workload import Workload
from torchfake.inspect.serve import Serve
from torchfake.inspect.steps.step import serving_step, step_of

SERVE = Serve(64, users=4, prompt=16, prefill=64)
H100 = "h100-80gb"


class Served(NamedTuple):
    """A family in a layout."""

    build: Callable[..., nn.Module]
    mesh: Mapping[str, int]

    @property
    def strategy(self) -> Strategy:
        return Strategy(self.mesh, precision="bf16", engine="inference")

    def model(self) -> nn.Module:
        return self.build().to(torch.bfloat16)

    def routed(self) -> nn.Module:
        """The model; its experts, if it has any, get equally many tokens, as in a plan."""
        model: Any = self.model()
        has_experts = any(name.endswith(".experts") for name, _ in model.named_modules())
        return routed(lambda: model) if has_experts else model


SERVED = {
    "llama, tp": Served(llama, {"tp": 4}),
    "llama, heads split": Served(partial(llama, num_key_value_heads=4), {"tp": 4}),
    "llama, tied and biased": Served(
        partial(llama, tie_word_embeddings=True, attention_bias=True), {"tp": 4}
    ),
    "qwen moe, tp": Served(qwen3_moe, {"tp": 4}),
    "qwen moe, ep": Served(qwen3_moe, {"ep": 4}),
    "qwen moe, ep and tp": Served(qwen3_moe, {"ep": 2, "tp": 2}),
    "qwen moe, experts over tp": Served(qwen3_moe, {"ep": 1, "tp": 4}),
    "deepseek, tp": Served(deepseek, {"tp": 4}),
    "deepseek, ep": Served(deepseek, {"ep": 4}),
    "deepseek, ep and tp": Served(deepseek, {"ep": 2, "tp": 2}),
    "gemma, tp": Served(gemma, {"tp": 4}),
    "jamba, tp": Served(jamba, {"tp": 4}),
    "jamba, ep": Served(jamba, {"ep": 4}),
    "bamba, tp": Served(bamba, {"tp": 4}),
    "qwen vl, tp": Served(qwen2_vl, {"tp": 4}),
}


@cache
def work_of(name: str, *, is_whole: bool = False) -> RankWork:
    """What the first rank of a served family does."""
    served = SERVED[name]
    return work(served.model, served.strategy, is_whole=is_whole)


@cache
def activations_on_cpu(name: str) -> int:
    """Bytes at the peak of the pass over prompts that are neither weights nor the pool of the
    cache, of all layers of the first rank, on the CPU, whose operators a real process can count.
    """
    served, device = SERVED[name], torch.device("cpu")
    step = step_of(Workload(nn.Module(), device=device), mode="inference")
    step = serving_step(SERVE, step, ())
    mesh = layout_of(served.strategy.mesh_shape, served.strategy.mesh_dim_names)
    job = Job(
        served.routed, served.strategy, None, step, mesh, device, None,
        answer="typical", routing="balanced", is_timed=False,
    )  # fmt: skip
    estimate = run_rank(job, 0, Mailboxes().of_rank(0)).estimate
    assert estimate.cache is not None
    sizes = estimate.peak.by_category
    held = sizes["parameters"] + sizes.get("buffers", 0) + estimate.cache.num_bytes
    return estimate.peak_bytes - held


def work(
    build: Any, strategy: Strategy | None, *, serve: Serve = SERVE, is_whole: bool = False
) -> RankWork:
    """What the first rank does."""
    mesh = layout_of(1, None)
    if strategy is not None:
        mesh = layout_of(strategy.mesh_shape, strategy.mesh_dim_names)
    gpu = gpu_profiles.profile(H100)
    return rank_work(build, strategy, mesh, serve, [gpu], is_whole=is_whole)[gpu]
