"""Strategies with pipelines: the stages do what the model does, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from torchfake import fake_mode
from torchfake._torch.distributed.training import pipeline_stages_of
from torchfake.distributed import Strategy, plan, plan_target
from torchfake.errors import InputsError

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "head_dim": 8,
}


def llama(**changed: Any) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changed}))


def gemma() -> nn.Module:
    """Its layers are of two types, which its config names."""
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, tie_word_embeddings=False))


@pytest.mark.parametrize("build", [llama, gemma])
@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_stages_do_what_the_model_does(build: Any, schedule: str) -> None:
    model, tokens = build().eval(), torch.randint(3, 60, (2, 10))
    expected = model(input_ids=tokens, use_cache=False).logits
    strategy, stages = Strategy({"pp": 2}, schedule=schedule, precision="fp32"), {}
    for rank in range(2):
        dist.init_process_group("fake", rank=rank, world_size=2)
        try:
            mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
            made = strategy(copy.deepcopy(model), mesh)
            stages.update({s.stage_index: s.submod for s in pipeline_stages_of(made) or ()})
        finally:
            dist.destroy_process_group()
    found = tokens
    for index in sorted(stages):
        found = stages[index](found)
    assert torch.equal(found, expected)


def test_a_target_in_stages() -> None:
    found = plan_target(
        "transformers:LlamaForCausalLM",
        overrides=[f"{name}={value}" for name, value in SIZES.items()],
        mesh="pp=2,dp=2",
        schedule="interleaved",
        micro_batch=1,
        batch=8,
        seq=16,
        checkpoint="full",
        shows_code=True,
    )
    assert found.batch.accumulate == 4
    assert [ranks.ranks for ranks in found.plan.by_ranks] == [(0, 1), (2, 3)]
    text = str(found)
    assert "FSDP2 along dp 2, pipeline along pp 2 (ScheduleInterleaved1F1B)" in text
    assert "return ScheduleInterleaved1F1B(stages, 4, loss_fn=loss_fn)" in text
    assert "waiting for other stages" in text
    said = json.loads(json.dumps(found.to_dict()))
    assert said["schedule"] == "interleaved"
    assert all(ranks["bubble_share"] > 0 for ranks in said["plan"]["by_ranks"])


def test_a_sequence_in_stages() -> None:
    strategy = Strategy({"pp": 2, "dp": 2}, schedule="gpipe", microbatches=3, precision="fp32")
    found = plan(
        lambda: nn.Sequential(*(nn.Linear(16, 16) for _ in range(5))),
        **strategy.plan_options,
        inputs=lambda: torch.empty(6, 16),
        target=lambda: torch.empty(6),
        optimizer="sgd",
        device="cpu",
    )
    values = [4 * (16 * 16 + 16) * layers // 2 for layers in (3, 2)]
    assert [ranks.parameter_bytes for ranks in found.by_ranks] == values


BAD_OPTIONS: list[tuple[dict[str, int], dict[str, Any], str]] = [
    ({"pp": 2}, {"schedule": "1f1c"}, "schedule is '1f1c'; did you mean 1f1b"),
    ({"dp": 2}, {"schedule": "1f1b"}, "schedule is for pipelines: give the mesh pp=2"),
    ({"dp": 2}, {"microbatches": 4}, "microbatches is for pipelines"),
    ({"pp": 4}, {"microbatches": 2}, "takes 4 micro-batches or more, not 2: give microbatches=4"),
    ({"pp": 2}, {"schedule": "dualpipev", "microbatches": 3}, "takes 4 micro-batches or more"),
    ({"pp": 4}, {"schedule": "interleaved", "microbatches": 9}, "not 9: give 8 or 12"),
    ({"pp": 2, "cp": 2}, {}, "pp and cp, which cannot be combined"),
    ({"pp": 2}, {"checkpoint": 2}, "names blocks of the whole model"),
]


@pytest.mark.parametrize(("mesh", "options", "message"), BAD_OPTIONS)
def test_options_that_are_refused(
    mesh: dict[str, int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputsError, match=message):
        Strategy(mesh, **options)


def test_a_schedule_that_this_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.distributed.pipelining.schedules.ScheduleDualPipeV")
    with pytest.raises(InputsError, match="has no ScheduleDualPipeV: give another schedule"):
        Strategy({"pp": 2}, schedule="DualPipeV")


BAD_MODELS: list[tuple[Any, dict[str, Any], str]] = [
    (llama, {"schedule": "zbv"}, "has 5 layers, and the pipeline 8 stages"),
    (lambda: llama(tie_word_embeddings=True), {}, "ties parameters of its first and its last"),
    (lambda: OPTForCausalLM(OPTConfig()), {}, "does not say how it is cut into stages"),
    (
        lambda: GraniteForCausalLM(GraniteConfig(**SIZES, embedding_multiplier=2.0)),
        {},
        "does more than to run them",
    ),
    (lambda: nn.Sequential(nn.Linear(2, 2)), {}, "has 1 layers, and the pipeline 4 stages"),
]


@pytest.mark.parametrize(("build", "options", "message"), BAD_MODELS)
def test_models_that_are_refused(build: Any, options: dict[str, Any], message: str) -> None:
    with fake_mode():
        model = build()
    with pytest.raises(InputsError, match=message):
        Strategy({"pp": 4}, **options).code(model)
