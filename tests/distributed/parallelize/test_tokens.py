"""Sequences and experts in strategies: what is refused, and what the printed code does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

from tests.distributed.parallelize import laid_out_models as models  # noqa: E402
from tests.distributed.parallelize import token_layouts as tokens  # noqa: E402
from torchfake import fake_mode  # noqa: E402
from torchfake.distributed import Strategy, plan, plan_target  # noqa: E402
from torchfake.distributed.parallelize import context_parallel, expert_parallel  # noqa: E402
from torchfake.distributed.parallelize.mesh_axes import parse_mesh  # noqa: E402
from torchfake.errors import InputsError  # noqa: E402


def code_of(strategy: Strategy, build: Any = models.llama) -> str:
    with fake_mode():
        return strategy.code(build())


def refused(strategy: Strategy, build: Any) -> str:
    with pytest.raises(InputsError) as raised:
        code_of(strategy, build)
    return str(raised.value)


def test_axes_are_completed() -> None:
    def sizes(text: str, gpus: int | None) -> dict[str, int]:
        return dict(parse_mesh(text, gpus).sizes)

    assert sizes("cp=2", 8) == {"dp": 4, "cp": 2}
    assert sizes("ep=8", 64) == {"dp": 8, "ep": 8, "tp": 1}
    assert sizes("ep=8", None) == {"dp": 1, "ep": 8, "tp": 1}
    assert sizes("replicate=2,ep=2", 16) == {"replicate": 2, "shard": 4, "ep": 2, "tp": 1}
    axes = parse_mesh("replicate=2,dp=2,cp=2,ep=2,tp=2", None)
    assert (axes.data_ranks, axes.sharding) == (8, ["dp", "cp", "ep"])
    with pytest.raises(InputsError, match="'sp': the sequence is split along tp, with sequence_pa"):
        parse_mesh("sp=2", 4)


def test_what_does_not_go_together() -> None:
    with pytest.raises(InputsError, match="stages of pp send tensors, and with sequence_parallel"):
        Strategy({"pp": 2, "tp": 2}, sequence_parallel=True)
    with pytest.raises(InputsError, match="sequence_parallel splits along tp: give the mesh tp=2"):
        Strategy({"dp": 2}, sequence_parallel=True)


def test_the_printed_code_splits_sequences() -> None:
    strategy = Strategy({"dp": 2, "cp": 2}, "full", "fp32")
    text = code_of(strategy)
    assert 'mesh["dp", "cp"]._flatten("dp_cp")' in text
    assert "#     with split_sequences(mesh, batch):" in text
    names: dict[str, Any] = {}
    exec(text.partition("\n\n\nmesh = ")[0], names)
    options = {**strategy.plan_options, "parallelize": names["parallelize"]}
    with fake_mode():
        batch = names["whole_sequences"](tokens.texts())
    assert batch["position_ids"].shape == batch["shift_labels"].shape == (2, 12)
    assert (options["unlike_axes"], options["mesh_shape"]) == ("cp", (2, 2))


def test_ranks_of_a_ring_are_run_each() -> None:
    strategy = Strategy({"dp": 2, "cp": 2})
    found = plan(models.llama, **strategy.plan_options, inputs=tokens.whole_texts, optimizer="sgd")
    assert [ranks.ranks for ranks in found.by_ranks] == [(0, 2), (1, 3)]
    ring = {row.collective: row.num_calls for row in found.traffic if row.axis == "cp"}
    assert ring == {"all_gather": 3, "permute": 6}


def of_experts(message: str) -> str:
    """What is said of experts, or first of a transformers that cannot split them."""
    return message if tokens.SHIPS_RULES else "has no transformers.distributed.expert_parallel"


@pytest.mark.parametrize(
    ("build", "sizes", "options", "message"),
    [
        (
            models.llama_of_a_whole_embedding,
            {"tp": 2},
            {"sequence_parallel": True},
            "LlamaForCausalLM has model.embed_tokens outside its blocks, which no rule splits",
        ),
        (models.llama, {"ep": 2}, {}, "LlamaForCausalLM ships no expert-parallel plan"),
        (models.qwen3_moe, {"ep": 3}, {}, of_experts("ep=3 does not divide the 4 experts")),
        (
            models.qwen3_moe,
            {"ep": 4, "tp": 2},
            {},
            of_experts("ep=4 x tp=2 does not divide the 4 experts"),
        ),
        (models.gpt_oss, {"cp": 2}, {}, "GptOssForCausalLM has no attention by scaled_dot_produ"),
        (tokens.gemma3, {"cp": 2}, {}, "has attention that is not causal over the whole sequence"),
        (models.t5, {"cp": 2}, {}, "T5ForConditionalGeneration is not a causal language model"),
    ],
)
def test_what_cannot_be_split(build: Any, sizes: Any, options: Any, message: str) -> None:
    assert message in refused(Strategy(sizes, **options), build)


def test_what_torch_and_transformers_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_parallel, "_ENGINE", "torch.distributed.tensor")
    monkeypatch.setattr(expert_parallel, "_ENGINE", "transformers.not_there")
    assert "has no torch.distributed.tensor.context_parallel" in refused(
        Strategy({"cp": 2}), models.llama
    )
    assert "has no transformers.not_there" in refused(Strategy({"ep": 2}), models.qwen3_moe)


class Own(nn.Module):
    """Attends without torch's function, or not causally."""

    def __init__(self, attend: Any) -> None:
        super().__init__()
        self.attend, self.linear = attend, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.linear(x).unsqueeze(1)
        return self.attend(heads, heads, heads)


def own_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (query @ key.transpose(-1, -2)).softmax(-1) @ value


@pytest.mark.parametrize(
    ("attend", "shape", "message"),
    [
        (
            own_attention,
            (2, 8, 8),
            "does not call torch.nn.functional.scaled_dot_product_attention",
        ),
        (own_attention, (2, 6, 8), "do not divide 6 tokens: give 4 or 8"),
        (own_attention, (8,), r"cp splits inputs of shape \[batch, tokens, ...\] alone"),
        (nn.functional.scaled_dot_product_attention, (2, 8, 8), "requires `is_causal=True`"),
    ],
)
def test_attention_that_is_not_split(attend: Any, shape: Any, message: str) -> None:
    strategy = Strategy({"cp": 2})

    def called(*heads: torch.Tensor) -> torch.Tensor:
        own = attend is own_attention
        return attend(*heads) if own else nn.functional.scaled_dot_product_attention(*heads)

    with pytest.raises(InputsError, match=message):
        plan(
            lambda: Own(called), **strategy.plan_options, inputs=torch.empty(shape), mode="training"
        )


def test_a_target_says_what_it_assumes() -> None:
    small = ["num_hidden_layers=1", "hidden_size=64", "vocab_size=99", "num_experts=4"]
    small += ["num_experts_per_tok=2"]
    found = plan_target(
        "transformers:Qwen3MoeForCausalLM",
        mesh="cp=2,ep=2" if tokens.SHIPS_RULES else "cp=2",
        seq=32,
        overrides=[*small, "moe_intermediate_size=16"],
    )
    notes = ["assumed:"] if tokens.SHIPS_RULES else []
    assert [note.partition(" ")[0] for note in found.notes] == notes
    axes = "cp 2 x ep 2" if tokens.SHIPS_RULES else "cp 2"
    assert f"layout                  FSDP2 along {axes}, context parallel" in str(found)
    with pytest.raises(InputsError, match="do not divide 34 tokens: give 32 or 36"):
        plan_target("transformers:LlamaForCausalLM", mesh="cp=2", seq=34, overrides=small[:3])
    with pytest.raises(InputsError, match="ViTForImageClassification is not a causal lan"):
        plan_target("transformers:ViTForImageClassification", mesh="cp=2", overrides=small[:2])
