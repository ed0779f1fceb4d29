"""Stacks of fewer experts than there are ranks: FSDP2 pads them, and a plan says so."""

from __future__ import annotations

import pytest
from transformers import MixtralConfig, MixtralForCausalLM

from torchfake import fake_mode
from torchfake.distributed import plan_target

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

SMALL = (
    "num_hidden_layers=1", "hidden_size=256", "intermediate_size=1024", "num_attention_heads=4",
    "num_key_value_heads=4", "vocab_size=64", "num_local_experts=4",
)  # fmt: skip
GIVEN = {"gpus": 16, "gpu": "h100-80gb", "batch": 16, "seq": 32, "overrides": SMALL}


def _entry(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    return name, int(value)


def test_experts_on_more_ranks_than_there_are_are_padded() -> None:
    found = plan_target("transformers:MixtralForCausalLM", **GIVEN, suggests=False)
    (note,) = found.notes
    assert note.startswith("FSDP2 pads parameters with 4 rows to the 16 ranks that shard them: ")
    assert note.endswith("are gathered; --mesh ep=4 distributes experts instead")
    times = float(note.partition("them: ")[2].partition(" ")[0])
    with fake_mode():
        model = MixtralForCausalLM(MixtralConfig(**dict(map(_entry, SMALL))))
    (row,) = (r for r in found.plan.traffic if (r.phase, r.collective) == ("forward", "all_gather"))
    in_bf16 = 2 * sum(p.numel() for p in model.parameters())
    assert f"{row.num_bytes / in_bf16:.1f}" == f"{times}"
    spread = plan_target("transformers:MixtralForCausalLM", **GIVEN, mesh="ep=4", suggests=False)
    assert not any("pads" in note for note in spread.notes)
    assert spread.plan.peak_bytes < found.plan.peak_bytes


def test_dense_models_are_not() -> None:
    given = GIVEN | {"overrides": SMALL[:-1]}
    assert plan_target("transformers:LlamaForCausalLM", **given, suggests=False).notes == ()
