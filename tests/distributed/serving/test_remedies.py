"""What is said of a server beside its numbers: smaller passes where activations leave no room,
images that nobody has given, windows that leave more room.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchfake import serve
from torchfake.distributed import ServingPlan

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

SMALL = (
    "hidden_size=256", "intermediate_size=2048", "num_hidden_layers=4", "num_attention_heads=4",
    "num_key_value_heads=2", "head_dim=64", "vocab_size=512", "num_local_experts=2",
    "num_experts_per_tok=1",
)  # fmt: skip
"""With attention sinks, of which transformers chooses another kernel than engines: gpt-oss."""
VISION = ("depth=1", "embed_dim=16", "hidden_size=32", "num_heads=2")
QWEN_VL = (
    *(f"vision_config.{each}" for each in VISION),
    "text_config.hidden_size=512",  # of four heads with three sections of positions each
    *(f"text_config.{each}" for each in SMALL[1:5]),
    "text_config.vocab_size=512",
)


def served(**options: Any) -> ServingPlan:
    given: dict[str, Any] = {"context": 1024, "gpu": "l4-24gb", "overrides": SMALL, **options}
    return serve("transformers:GptOssForCausalLM", **given)


def share_for(found: ServingPlan, num_bytes: float) -> float:
    """The utilization that leaves so many bytes for the cache."""
    memory = found.memory
    needed = memory.weights + memory.activations + memory.context + num_bytes
    return float(needed / memory.total)


def test_where_activations_leave_no_room_passes_over_fewer_tokens_are_tried() -> None:
    roomy = served()
    few = roomy.server.cache_bytes(1)
    found = served(utilization=share_for(roomy, -roomy.memory.activations / 2 + few))
    assert (found.fits, found.memory.cache < 0) == (False, True)
    option, _, rest = found.remedy.partition(", with room for ")
    tokens = int(option.removeprefix("--pass-tokens "))
    assert tokens in (2048, 4096)
    utilization = found.server.utilization
    tried = served(utilization=utilization, pass_tokens=tokens, suggests=False)
    assert tried.fits
    assert rest.startswith(f"{tried.most_users_on_average:,} user")
    assert "with 1 user first token " in rest
    assert not served(utilization=utilization, pass_tokens=2 * tokens, suggests=False).fits


def test_weights_that_do_not_fit_are_answered_with_no_smaller_pass() -> None:
    roomy = served()
    found = served(utilization=share_for(roomy, -roomy.memory.activations - (64 << 20)))
    assert "--pass-tokens" not in found.remedy


def test_a_window_leaves_room_for_more_users_than_tokens_tell_and_that_is_said() -> None:
    given = {"overrides": (*SMALL, "sliding_window=32"), "pass_tokens": 1024}
    roomy = served(**given)
    many = roomy.server.cache_bytes(8)
    found = served(**given, utilization=share_for(roomy, many + 4096), users=2)
    assert found.most_users == 8 > (found.cache_tokens or 0) / 1024
    assert " while prompts are read, and for 8 full contexts: windows " in str(found)
    assert " while prompts are read" not in str(served(pass_tokens=1024))


def test_a_model_of_text_and_images_says_that_it_is_given_no_images() -> None:
    name = "transformers:Qwen2VLForConditionalGeneration"
    found = serve(name, context=64, users=4, gpu="l4-24gb", overrides=QWEN_VL)
    assert str(found).startswith("fits           yes: 4 users x 64 tokens, no images, on 1 ")
    assert "images: the time and the memory of their encoder" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["not_given"] == "images"
    assert "no images" not in str(served())
