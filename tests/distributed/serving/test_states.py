"""Servers of models that cache states: no time and no memory of a decoded token depends on the
context.
"""

from __future__ import annotations

from typing import Any

import pytest

from torchfake import serve
from torchfake.distributed import ServingPlan
from torchfake.inspect.records.units import bytes_text

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

MAMBA = ("hidden_size=64", "num_hidden_layers=4", "state_size=8", "vocab_size=128")
STATES = 4 * (2 * 64) * (8 * 4 + 4 * 2)
"""Bytes of four layers of 128 channels: the state in float32, the window of the convolution."""
BAMBA = (
    "hidden_size=64", "intermediate_size=64", "num_hidden_layers=4", "num_attention_heads=4",
    "num_key_value_heads=2", "mamba_n_heads=4", "mamba_d_head=32", "mamba_n_groups=1",
    "mamba_d_state=8", "mamba_chunk_size=16", "attn_layer_indices=[1]", "vocab_size=128",
)  # fmt: skip


def served(name: str, overrides: tuple[str, ...], **options: Any) -> ServingPlan:
    given: dict[str, Any] = {"users": 4, "context": 64, "gpu": "l4-24gb", **options}
    return serve(f"transformers:{name}", overrides=overrides, **given)


@pytest.fixture(scope="module")
def mamba() -> ServingPlan:
    return served("MambaForCausalLM", MAMBA)


def line_of(found: ServingPlan, name: str) -> str:
    return next(x for x in str(found).splitlines() if x.strip().startswith(name))


def test_a_decoded_token_of_a_state_space_model_takes_as_long_whatever_the_context(
    mamba: ServingPlan,
) -> None:
    longer = served("MambaForCausalLM", MAMBA, context=128)
    for users, steady in mamba.by_users:
        found = dict(longer.by_users)[users]
        assert found.parts.kernels == pytest.approx(steady.parts.kernels, rel=0.01)
    layers = mamba.server.work.layers[0], longer.server.work.layers[0]
    assert layers[0].launches == layers[1].launches
    assert layers[1].prompt_launches > layers[0].prompt_launches > layers[0].launches


def test_the_eager_engine_launches_each_step_of_a_scan_over_prompts() -> None:
    alone = [
        served("MambaForCausalLM", MAMBA, context=context, users=1, engine="eager")
        for context in (64, 128)
    ]
    assert alone[1].first_token_seconds > 1.3 * alone[0].first_token_seconds
    each = [found.by_users[0][1].seconds for found in alone]
    assert each[1] == pytest.approx(each[0], rel=0.1)


def test_states_are_said_for_each_user_and_not_for_each_token(mamba: ServingPlan) -> None:
    most = mamba.memory.cache // STATES
    said = f", room for {most:,} users of {bytes_text(STATES)}, whatever the context; "
    assert said in line_of(mamba, "states ")
    assert "kv cache" not in str(mamba)
    found = mamba.to_dict()
    assert (found["cache_tokens"], found["token_bytes"]) == (None, 0)
    assert found["state_bytes"] == STATES


def test_a_hybrid_says_its_tokens_and_its_states() -> None:
    hybrid = served("BambaForCausalLM", BAMBA)
    line, server = line_of(hybrid, "kv cache "), hybrid.server
    states = bytes_text(server.state_bytes)
    assert f" tokens of 128 B, with states of {states} for each user; " in line
    assert hybrid.token_bytes == 2 * 2 * 16 * 2
    assert server.cache_bytes(1) == 64 * hybrid.token_bytes + server.state_bytes
