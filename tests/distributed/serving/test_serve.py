"""``serve``: whether a model can be served to a number of users, and how fast."""

from __future__ import annotations

import json
import re

import pytest

from torchfake import serve
from torchfake.distributed import ServingPlan
from torchfake.distributed.passes.attention import NOT_FUSED
from torchfake.distributed.passes.capacity import SAMPLER_BYTES
from torchfake.distributed.serving.curve import labels_of
from torchfake.errors import DeviceError, InputsError, TargetError
from torchfake.inspect.records.record import drawn_as
from torchfake.inspect.records.units import seconds_text

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

LLAMA = "transformers:LlamaForCausalLM"
SMALL = (
    "hidden_size=256", "intermediate_size=512", "num_hidden_layers=6", "num_attention_heads=8",
    "num_key_value_heads=4", "vocab_size=1024",
)  # fmt: skip
PARAMETERS = 2 * 1024 * 256 + 6 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256) + 256


def served(**options: object) -> ServingPlan:
    given = {"users": 4, "context": 64, "gpu": "h100-80gb", "overrides": SMALL, **options}
    return serve(LLAMA, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plan() -> ServingPlan:
    return served()


def test_weights_are_those_of_the_model_in_half_precision(plan: ServingPlan) -> None:
    inv_freq = 4 * 32 // 2 * 2  # the frequencies of rotary embeddings, in float32, twice
    assert plan.memory.weights == 2 * PARAMETERS + inv_freq
    assert plan.weights == "bf16"


def test_the_memory_of_a_gpu_is_divided_without_rest(plan: ServingPlan) -> None:
    parts = {name: size for name, size in plan.memory.to_dict().items() if name != "total"}
    assert sum(parts.values()) == plan.memory.total


def test_the_cache_of_the_most_users_fits_and_that_of_one_more_does_not(plan: ServingPlan) -> None:
    small = served(utilization=0.0059)
    most = small.most_users
    assert 1 <= most < plan.most_users
    assert small.server.cache_bytes(most) <= small.memory.cache < small.server.cache_bytes(most + 1)


def test_a_yes_says_how_many_users_fit_by_the_length_of_their_sequences(plan: ServingPlan) -> None:
    few = served(utilization=0.0061)
    most, on_average = few.most_users, few.most_users_on_average
    assert (few.verdict, most < on_average) == ("yes", True)
    at_most = f"; at most {most:,} with full contexts, {on_average:,} at their average length\n"
    assert at_most in str(few)
    assert plan.most_users == plan.most_users_on_average  # the most that the engine takes
    assert f"; at most {plan.most_users:,}, as many as an engine decodes\n" in str(plan)


def test_the_sampler_holds_the_logits_of_all_users() -> None:
    """Up to those of ``max_num_seqs``, where they are more than the activations of a pass."""
    few, many, more = (served(users=n, pass_tokens=64).memory for n in (4, 1024, 2048))
    assert many.activations == more.activations == SAMPLER_BYTES * 1024 * 1024
    assert few.activations < many.activations
    assert few.cache - many.cache == many.activations - few.activations


def test_attention_in_single_operators_is_fused_like_any_other(plan: ServingPlan) -> None:
    """Scores are tensors of the model then, and of no engine."""
    given = {"overrides": (*SMALL, "_attn_implementation=eager")}
    eager = served(**given, engine="eager").server.work.layers[0]
    fused = plan.server.work.layers[0]
    assert served(**given).server.work.layers[0] == fused
    assert fused.attention
    assert not eager.attention
    assert eager.pair_flops == pytest.approx(fused.pair_flops)
    assert eager.token_bytes <= fused.token_bytes
    assert eager.token_flops == fused.token_flops == 0


def test_latent_attention_is_wider_over_the_cache_than_over_prompts() -> None:
    sizes = (
        "hidden_size=64", "intermediate_size=64", "moe_intermediate_size=32", "num_hidden_layers=2",
        "first_k_dense_replace=2", "num_attention_heads=4", "num_key_value_heads=4",
        "q_lora_rank=32", "kv_lora_rank=96", "qk_nope_head_dim=32", "qk_rope_head_dim=16",
        "v_head_dim=32", "vocab_size=128",
    )  # fmt: skip
    found = serve(
        "transformers:DeepseekV3ForCausalLM", gpu="h100-80gb", context=64, overrides=sizes
    )
    layer = found.server.work.layers[0]
    assert layer.cached_flops / layer.pair_flops == pytest.approx((2 * 96 + 16) / (32 + 16 + 32))


def test_replicas_serve_their_parts_of_the_users() -> None:
    one, two = served(users=8), served(users=16, mesh={"replicate": 2})
    assert two.most_users == 2 * one.most_users
    assert two.tokens_per_second == pytest.approx(2 * (one.tokens_per_second or 0))
    assert two.tokens_per_second_per_gpu == pytest.approx(one.tokens_per_second_per_gpu)


def test_ranks_of_tensor_parallelism_hold_parts_of_the_weights() -> None:
    one, two = served(), served(gpus=2)
    assert two.server.axes.sizes["tp"] == 2
    assert one.memory.weights / 2 < two.memory.weights < one.memory.weights * 0.51
    assert two.steady is not None
    assert two.steady.parts.communication > 0


def test_more_gpus_than_a_node_has_are_stages_of_a_pipeline() -> None:
    found = served(gpus=16, overrides=(*SMALL, "num_key_value_heads=8"))
    assert found.server.axes.sizes == {"pp": 2, "tp": 8}


def test_weights_in_8_bits_take_half_of_the_linear_layers() -> None:
    plain, fp8 = served(), served(weights="fp8")
    linear = PARAMETERS - 2 * 1024 * 256 - 13 * 256
    scales = 4 * 6 * (2 * 256 + 2 * 128 + 2 * 512 + 256)
    assert plain.memory.weights - fp8.memory.weights == linear - scales
    assert fp8.weights == "fp8"


def test_a_cache_in_8_bits_serves_twice_as_many_users() -> None:
    plain, fp8 = served(utilization=0.0059), served(utilization=0.0059, cache_dtype="fp8")
    assert fp8.most_users in (2 * plain.most_users, 2 * plain.most_users + 1)


def test_more_users_wait_longer_for_each_token_and_get_more_of_them_together(
    plan: ServingPlan,
) -> None:
    steady = [found for _, found in plan.by_users]
    assert len(steady) > 3
    seconds, rates = [x.seconds for x in steady], [x.tokens_per_second for x in steady]
    assert seconds == sorted(seconds)
    assert rates == sorted(rates)


def test_what_does_not_fit_is_answered_with_what_does() -> None:
    found = served(users=500, utilization=0.0059)
    assert (found.fits, found.verdict) == (False, "no")
    assert found.remedy


def test_what_is_suggested_fits_and_needs_fewer_gpus_the_more_it_loses() -> None:
    found = served(users=500, utilization=0.0059)
    given = dict[str, object](users=500, utilization=0.0059, suggests=False)
    numbers = []
    for remedy in found.remedy.split("; or "):
        options, _, serves = remedy.partition(", with room for ")
        words = options.removeprefix("--").replace("--", "").split()
        names = [name.replace("-", "_") for name in words[::2]]
        asked = {
            name: int(v) if v.isdigit() else v for name, v in zip(names, words[1::2], strict=True)
        }
        tried = served(**given, **asked)
        assert tried.fits
        average, full = tried.most_users_on_average, tried.most_users
        assert average != full
        numbers.append(tried.server.axes.num_ranks)
        more = f" on {numbers[-1]} GPUs" * ("mesh" in asked)
        lengths = f"at their average length, {full:,} with full contexts"
        assert tried.steady is not None
        first, each = tried.steady.first_token_seconds, tried.steady.seconds
        times = f"first token {seconds_text(first)}, each token {seconds_text(each)}"
        assert serves == f"{average:,} users {lengths}{more}; with 500 users {times}"
    assert numbers == sorted({*numbers}, reverse=True)
    assert numbers


def test_changes_are_combined_where_none_alone_suffices() -> None:
    memory = served(pass_tokens=512).memory  # of which smaller passes are not tried
    needed = memory.weights + memory.activations + memory.context + (12 << 20)
    given = {"pass_tokens": 512, "utilization": needed / memory.total}
    plain, fp8 = (served(**given, weights=name, suggests=False) for name in (None, "fp8"))
    cached = served(**given, cache_dtype="fp8", suggests=False)
    users = max(plan.most_users_on_average for plan in (plain, fp8, cached)) + 1
    found = served(users=users, **given)
    assert f" with full contexts; with {users:,} users first token " in found.remedy
    assert "--weights fp8 --cache-dtype fp8, with room for " in found.remedy


def test_verdicts_compare_full_and_average_contexts() -> None:
    some = served(utilization=0.0059)
    between = (some.most_users + some.most_users_on_average) // 2
    verdicts = [
        served(users=n, utilization=0.0059, suggests=False).verdict
        for n in (some.most_users, between, some.most_users_on_average + 1)
    ]
    assert verdicts == ["yes", "tight", "no"]


def test_a_server_without_room_for_one_full_context_serves_nobody() -> None:
    """Engines refuse to start, whatever the average length of a sequence is."""
    some = served(users=1, context=64, utilization=0.0059, suggests=False)
    assert some.cache_tokens is not None
    given = {"users": 1, "utilization": 0.0059, "pass_tokens": 512, "suggests": False}
    room = served(context=64, **given).cache_tokens
    assert room is not None
    found = served(context=2 * room // 64 * 64, prompt=64, **given)
    assert (found.most_users, found.most_users_on_average, found.verdict) == (0, 0, "no")
    said = rf"no, .*; not even one context of {found.server.serve.context:,} tokens fits: there is "
    assert re.search(said + rf"room for {found.cache_tokens:,}$", str(found).splitlines()[0])


def test_json_has_all_figures(plan: ServingPlan) -> None:
    found = json.loads(json.dumps(plan.to_dict()))
    assert found["steady"]["bound_by"] in found["steady"]["seconds_by_part"]
    assert found["by_users"][0]["of_all"] == 1
    assert found["memory"]["cache"] == plan.memory.cache


def test_rates_of_each_gpu_are_shown_where_there_are_several(plan: ServingPlan) -> None:
    two = served(gpus=2)
    for words in ("tokens/s on each GPU", "each GPU  bound by"):
        assert (words in str(plan), words in str(two)) == (False, True)
    assert ("on each GPU" in plan._repr_html_(), "on each GPU" in two._repr_html_()) == (
        False,
        True,
    )


def test_the_curve_is_of_the_gpu_or_of_each() -> None:
    one, two = (str(drawn_as(served(gpus=number), "svg")) for number in (1, 2))
    for curve, words in ((one, "of the GPU"), (two, "of each GPU")):
        assert f"<title>Tokens per second: {words}, and of each user</title>" in curve
        assert f">tokens/s {words}</text>" in curve


@pytest.mark.parametrize("users", [1, 4, 30, 300, 1500])
def test_the_asked_point_of_the_curve_and_most_others_have_labels(users: int) -> None:
    found = served(users=users)
    texts = re.findall(r">([\d,]+) users?</text>", drawn_as(found, "svg"))
    named = {int(text.replace(",", "")) for text in texts}
    points = {number for number, _ in found.by_users}
    assert min(users, max(points)) in named <= points
    assert len(named) > len(points) / 2


def test_labels_are_nearest_to_their_points_and_over_no_other_label() -> None:
    alone = {128: (150.0, 60.0), 150: (138.0, 59.0), 100: (164.0, 78.0)}
    assert {label.users for label in labels_of(alone, 100)} == {128, 150, 100}
    crowded = {1: (320.0, 250.0), 8: (318.0, 248.0), 16: (316.0, 246.0), 32: (300.0, 100.0)}
    found = labels_of(crowded, 8)
    assert {label.text for label in found} == {"8 users", "32 users"}
    assert all(0 <= label.box[0] < label.box[1] <= 400 for label in found)


def test_json_has_the_rate_of_each_gpu_in_every_row() -> None:
    data = served(gpus=2).to_dict()
    for row in data["by_users"]:
        assert row["tokens_per_second_per_gpu"] == row["tokens_per_second"] / 2


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"users": 0}, InputsError, "users=0"),
        ({"context": 1}, InputsError, "context=1"),
        ({"prompt": 64}, InputsError, "a prompt of 64 tokens leaves no room"),
        ({"gpus": 0}, InputsError, "gpus=0"),
        ({"gpus": 2, "mesh": "tp=4"}, InputsError, "4"),
        ({"mesh": "dp=2"}, InputsError, "replicate=2"),
        ({"mesh": "cp=2"}, InputsError, "leave it out of the mesh"),
        ({"weights": "fp7"}, InputsError, "no format that is served"),
        ({"weights": "fp8", "gpu": "a100-80gb"}, InputsError, "has no kernels"),
        ({"gpu": "h1000"}, DeviceError, "h1000"),
        ({"gpu": "mi300x-192gb"}, InputsError, "not known"),
        ({"utilization": 1.5}, InputsError, "utilization=1.5"),
        ({"engine": "warp"}, InputsError, "engine='warp'"),
    ],
)
def test_invalid_arguments_are_refused_by_name(
    options: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        served(**options)


def test_a_target_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TargetError):
        serve("transformers:NoSuchModel")


def test_a_model_without_a_cache_is_refused() -> None:
    with pytest.raises(InputsError, match=r"cannot be served|caches"):
        serve("transformers:BertModel", overrides=("num_hidden_layers=1",), context=64)


def test_answers_may_be_shorter_than_the_rest_of_the_context() -> None:
    given = {"prompt": 16, "utilization": 0.0059}
    rest, short = served(**given, answer_tokens=48), served(**given, answer_tokens=8)
    assert rest.to_dict() == served(**given).to_dict()
    assert short.server.request.mean_context == 20
    assert short.most_users == rest.most_users, "full contexts have the same length"
    assert short.most_users_on_average > rest.most_users_on_average
    assert "prompts of 16, answers of 8 tokens" in str(short)
    with pytest.raises(InputsError, match="answer_tokens=49 is more than the 48 that prompts"):
        served(prompt=16, answer_tokens=49)


def test_users_past_what_an_engine_decodes_wait_whatever_the_memory() -> None:
    found = served(users=1100)
    assert found.most_users_on_average == 1024
    first = str(found).splitlines()[0]
    assert "no: 1,024 of 1,100 users at the same time, as many as an engine decodes" in first
    assert "more for those that wait\n" in str(found)


def test_that_not_even_one_sequence_fits_is_said() -> None:
    long = {"context": 16384, "overrides": (*SMALL, "max_position_embeddings=16384")}
    found = served(users=1, utilization=0.0055, suggests=False, **long)
    said = "no: 1 user x 16,384 tokens on 1 NVIDIA H100 80GB HBM3; not even one context of 16,384 "
    assert str(found).startswith(f"fits           {said}tokens fits: there is room for ")


def test_a_gpu_without_tensor_cores_for_bf16_serves_in_fp16_with_fused_attention() -> None:
    """An engine has kernels that store no scores, where torch has them only on newer GPUs."""
    old, new = (served(gpu=gpu, context=4096) for gpu in ("t4-16gb", "a100-80gb"))
    assert (old.weights, new.weights) == ("fp16", "bf16")
    assert old.memory.activations == new.memory.activations
    assert "in fp16: Tesla T4 has no tensor cores for bf16" in old.notes
    half = served(gpu="t4-16gb", context=4096, overrides=(*SMALL, "dtype=float16"))
    assert half.steady == old.steady
    eager = served(gpu="t4-16gb", context=4096, engine="eager")
    assert eager.memory.activations > old.memory.activations


@pytest.mark.parametrize(
    ("model", "fewer", "note"),
    [("GptOssForCausalLM", True, False), ("Gemma2ForCausalLM", False, True), (None, False, False)],
)
def test_an_engine_stores_no_scores_or_a_note_says_that_they_are_counted(
    model: str | None, fewer: bool, note: bool
) -> None:
    """Transformers runs attention with sinks, and with a cap, eagerly; engines fuse both."""
    name = LLAMA if model is None else f"transformers:{model}"
    given = {"overrides": ["num_hidden_layers=2"], "context": 4096, "gpu": "h100-80gb"}
    engine, eager = (serve(name, engine=each, **given) for each in ("engine", "eager"))  # type: ignore[arg-type]
    assert (engine.memory.activations < eager.memory.activations) == fewer
    assert (NOT_FUSED in engine.notes) == note
    assert (engine.errors is None) == note, "an upper bound was compared with nothing"
    assert NOT_FUSED not in eager.notes
