"""A model in stages of a pipeline, and users on ranks that share experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import NormalDist
from typing import Any

import pytest

from tests.distributed.serving.families import llama, qwen2_vl, qwen3_moe
from tests.distributed.serving.layouts import H100, SERVE, SERVED, Served, work, work_of
from torchfake._core import gpu_profiles
from torchfake.distributed.parallelize.mesh_axes import mesh_axes
from torchfake.distributed.passes.engines import engine_named
from torchfake.distributed.passes.pass_time import Load, Machine, seconds_of_pass
from torchfake.distributed.passes.rank_record import LayerWork, RankWork, Sent
from torchfake.distributed.serving.server import Server
from torchfake.inspect.timing.collectives import Links
from torchfake.inspect.timing.hardware import hardware_of

HIDDEN_BYTES = 2 * 32  # of a token, in bfloat16


def machine() -> Machine:
    gpu = gpu_profiles.profile(H100)
    hardware = hardware_of(gpu)
    assert hardware is not None
    return Machine(gpu, hardware, Links(hardware.link_bytes), engine_named("engine"))


def server(found: RankWork, **sizes: int) -> Server:
    return Server(found, machine(), mesh_axes(sizes), SERVE, 0.9)


def whole(build: Any = llama) -> RankWork:
    return work(Served(build, {}).model, None)


def held(stages: list[RankWork]) -> Iterator[tuple[str, int]]:
    for stage in stages:
        for weight in stage.weights:
            yield weight.name, weight.num_bytes


@pytest.mark.parametrize("number", [2, 3, 6])
@pytest.mark.parametrize("build", [llama, qwen2_vl, qwen3_moe])
def test_the_stages_hold_together_what_the_model_does(build: Any, number: int) -> None:
    found = whole(build)
    assert Counter(held(server(found, pp=number).stages)) == Counter(held([found]))


def test_the_first_stage_has_the_embeddings_and_the_last_one_the_head() -> None:
    first, last = server(whole(), pp=2).stages
    names = [{w.name for w in (*s.before.held, *s.after.held)} for s in (first, last)]
    assert names[1] == {"model.norm.weight", "lm_head.weight"}
    assert "model.embed_tokens.weight" in names[0]


def test_the_first_stage_has_the_vision_tower() -> None:
    first, last = server(whole(qwen2_vl), pp=2).stages
    assert len(first.towers) == 8
    assert not last.towers
    assert not [w.name for w in last.weights if "visual" in w.name]


def test_tied_embeddings_are_on_the_first_and_the_last_stage() -> None:
    stages = server(whole(partial(llama, tie_word_embeddings=True)), pp=3).stages
    found = ["model.embed_tokens.weight" in [w.name for w in stage.weights] for stage in stages]
    assert found == [True, False, True]


def test_a_tied_head_is_a_product_with_the_embedding() -> None:
    [head] = whole(partial(llama, tie_word_embeddings=True)).after.products
    assert head.weight.name == "model.embed_tokens.weight"
    assert head.of_sequences


def test_layers_are_divided_evenly() -> None:
    assert [len(s.layers) for s in server(whole(), pp=4).stages] in ([2, 1, 1, 2], [1, 2, 1, 2])


def test_each_stage_but_the_last_sends_hidden_states_and_a_residual() -> None:
    *others, last = server(whole(), pp=3).stages
    for stage in others:
        assert stage.after.sent == (Sent("send", "pp", 2, 2 * HIDDEN_BYTES, 2),)
    assert "send" not in {sent.collective for sent in last.after.sent}


def test_each_rank_sends_its_part_and_the_next_stage_puts_them_together() -> None:
    [first, _] = server(work_of("llama, tp"), pp=2, tp=4).stages
    assert first.after.sent == (
        Sent("send", "pp", 2, 2 * HIDDEN_BYTES / 4, 2),
        Sent("all_gather", "tp", 4, 2 * HIDDEN_BYTES, 4),
    )


def test_stages_of_more_than_a_node_send_through_the_network() -> None:
    [first, *_] = server(work_of("llama, tp"), pp=4, tp=4).stages
    assert first.after.sent[0].in_node == 1


def test_what_stages_send_takes_time() -> None:
    found = server(whole(), pp=2)
    assert found.time_of(Load(users=8)).communication > 0
    assert server(whole(), pp=1).time_of(Load(users=8)).communication == 0


def test_a_message_through_the_network_takes_longer() -> None:
    found, load = work_of("llama, tp"), Load(prompt_tokens=8192, prompts=8)
    far = [replace(sent, in_node=1) for sent in found.layers[0].sent]
    layer = replace(found.layers[0], sent=tuple(far))
    near, network = (
        seconds_of_pass(replace(found, layers=(each,)), load, machine()).communication
        for each in (found.layers[0], layer)
    )
    assert network > 2 * near


def test_a_group_of_more_ranks_than_a_node_has_is_known_from_the_mesh() -> None:
    build = partial(llama, num_attention_heads=16, num_key_value_heads=2, hidden_size=256)
    found = work(build, SERVED["llama, tp"]._replace(mesh={"tp": 16}).strategy)
    assert {(sent.group_size, sent.in_node) for sent in found.layers[0].sent} == {(16, 8)}


def test_replicas_divide_the_users() -> None:
    one, two = (server(whole(), replicate=n) for n in (1, 2))
    assert two.replicas == 2
    assert two.num_gpus == 1
    assert two.most_users() == one.most_users()  # of a replica


def test_each_rank_of_experts_has_users_of_its_own() -> None:
    found = server(work_of("qwen moe, ep"), ep=4)
    assert (found.replicas, found.num_gpus) == (1, 4)
    assert found.cache_bytes(8) == server(whole(qwen3_moe), tp=1).cache_bytes(2)
    assert found.time_of(Load(users=8, context=32)).cache == pytest.approx(
        server(whole(qwen3_moe), tp=1).time_of(Load(users=2, context=32)).cache
    )


def test_experts_get_the_tokens_of_all_ranks() -> None:
    """2 of 8 experts are chosen for each token: of a rank's 2 experts, each gets a quarter of the
    tokens of four ranks.
    """
    [up, _] = [p for p in work_of("qwen moe, ep").layers[0].products if len(p.weight.shape) == 3]
    assert up.weight.shape[0] == 2
    assert (up.rows, up.ranks) == (4 * 2 / 8, 4)


def test_the_experts_that_are_hit_are_those_of_all_tokens() -> None:
    """With a token on each of four ranks, 1 - (1 - 2/8)^4 of the experts are read, more by the rank
    that has most of them.
    """

    def read(found: RankWork, load: Load) -> float:
        layer = found.layers[0]
        [experts, _] = [p for p in layer.products if len(p.weight.shape) == 3]
        large = replace(experts, weight=replace(experts.weight, shape=(2, 8192, 8192)))
        found = replace(found, layers=(LayerWork(products=(large,)),))
        return seconds_of_pass(found, load, machine()).weights

    all_ranks, alone = (
        read(work_of("qwen moe, ep"), Load(users=1, is_alone=is_alone))
        for is_alone in (False, True)
    )
    above = NormalDist().inv_cdf((4 - 0.375) / (4 + 0.25))
    most = [min(p + above * (p * (1 - p) / 2) ** 0.5, 1.0) for p in (1 - 0.75**4, 0.25)]
    assert all_ranks / alone == pytest.approx(most[0] / most[1], rel=0.1)


def test_experts_over_ranks_of_tensors_get_the_tokens_that_these_share() -> None:
    """A rank has 2 of 8 experts, each of which is chosen by a quarter of the tokens."""
    layer = work_of("qwen moe, experts over tp").layers[0]
    [up, down] = [p for p in layer.products if len(p.weight.shape) == 3]
    assert up.weight.shape[0] == down.weight.shape[0] == 2
    assert (up.rows, up.ranks) == (2 / 8, 1)
    assert {sent.collective for sent in layer.sent} == {"all_reduce"}
