"""The time of a pass follows from bytes and FLOPs that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torchfake import profiles
from torchfake.distributed.passes.engines import ENGINES, engine_named
from torchfake.distributed.passes.formats import FORMATS, keeping
from torchfake.distributed.passes.pass_time import (
    Load,
    Machine,
    PassTime,
    _as_engines,
    seconds_of_pass,
)
from torchfake.distributed.passes.rank_record import (
    LayerWork,
    Multiplied,
    RankWork,
    Sent,
    Weight,
)
from torchfake.errors import InputsError
from torchfake.inspect.serving.blocks import Page
from torchfake.inspect.timing.collectives import Links
from torchfake.inspect.timing.efficiency import KERNEL_SECONDS, LAUNCH_SECONDS
from torchfake.inspect.timing.hardware import hardware_of

WIDTH = 8192
ENGINE = ENGINES["engine"]
BANDWIDTH = 3352e9  # of an H100


def _machine(gpu: str = "h100-80gb", weights: str | None = None, engine: str = "engine") -> Machine:
    profile = profiles()[gpu]
    hardware = hardware_of(profile)
    assert hardware is not None
    stored = FORMATS[weights] if weights else None
    return Machine(profile, hardware, Links(hardware.link_bytes), ENGINES[engine], stored)


def _weight(*shape: int, name: str = "layers.0.up_proj.weight") -> Weight:
    return Weight(name, shape, 2, True)


def _work(
    *products: Multiplied,
    pages: tuple[Page, ...] = (),
    sent: tuple[Sent, ...] = (),
    layers: int = 1,
) -> RankWork:
    held = tuple(each.weight for each in products)
    layer = LayerWork(held, products, 0.0, "", 0.0, 0.0, sent, pages, launches=10)
    nothing = LayerWork((), (), 0.0, "", 0.0, 0.0, ())
    return RankWork("Model", (layer,) * layers, nothing, torch.bfloat16, 0, 1024)


PLAIN = _work(Multiplied(_weight(WIDTH, WIDTH), 1.0, False))
ALONE, PROMPT = Load(users=1, context=1000), Load(prompt_tokens=8192, prompts=1)


def test_one_token_takes_as_long_as_reading_the_weights() -> None:
    found = seconds_of_pass(PLAIN, ALONE, _machine())
    reading = 2 * WIDTH**2 / (BANDWIDTH * ENGINE.weights_share)
    assert found.compute == 0
    assert reading < found.weights < 1.25 * reading


def test_a_prompt_is_arithmetic() -> None:
    found = seconds_of_pass(PLAIN, PROMPT, _machine())
    least = 2 * 8192 * WIDTH**2 / 989.4e12
    assert found.weights == 0
    assert least < found.compute < 2 * least


@pytest.mark.parametrize(("weights", "bytes_of_value"), [("fp8", 1), ("awq", 0.52), ("gptq", 0.52)])
def test_narrow_weights_are_read_faster(weights: str, bytes_of_value: float) -> None:
    """Nearly by as much as they are narrower: the arithmetic beside it does not shrink."""
    whole = seconds_of_pass(PLAIN, ALONE, _machine()).weights
    narrow = seconds_of_pass(PLAIN, ALONE, _machine(weights=weights)).weights
    assert bytes_of_value / 2 - 0.01 < narrow / whole < bytes_of_value / 2 + 0.08


def test_prompts_are_faster_in_fp8_and_not_with_4_bit_weights() -> None:
    times = {
        each: seconds_of_pass(PLAIN, PROMPT, _machine(weights=each)).compute
        for each in (None, "fp8", "awq")
    }
    assert times["fp8"] < 0.6 * times[None]
    assert times["awq"] == pytest.approx(times[None], rel=0.05)


def test_mxfp4_is_expanded_before_blackwell() -> None:
    hopper = [seconds_of_pass(PLAIN, PROMPT, _machine(weights=w)).compute for w in (None, "mxfp4")]
    assert hopper[1] == pytest.approx(hopper[0], rel=0.05)
    blackwell = [
        seconds_of_pass(PLAIN, PROMPT, _machine("b200-180gb", w)).compute for w in (None, "mxfp4")
    ]
    assert blackwell[1] < 0.3 * blackwell[0]


def test_kept_layers_are_multiplied_in_the_models_dtype() -> None:
    kept = keeping(PLAIN, ["layers.0.up_proj"])
    machine = _machine(weights="fp8")
    whole = seconds_of_pass(PLAIN, PROMPT, _machine())
    assert seconds_of_pass(kept, PROMPT, machine) == whole
    assert seconds_of_pass(PLAIN, PROMPT, machine).seconds < whole.seconds


def test_layers_are_kept_by_their_own_number() -> None:
    work = _work(*PLAIN.layers[0].products, layers=4)
    kept = keeping(work, ["layers.2.up_proj"])
    assert [layer.held[0].is_kept for layer in kept.layers] == [False, False, True, False]
    assert kept.layers[0] is kept.layers[1]


def test_the_cache_of_each_user_is_read() -> None:
    page = Page("full attention", 4096, 0, None)
    work = _work(pages=(page,))
    found = seconds_of_pass(work, Load(users=10, context=1000), _machine())
    assert found.cache == pytest.approx(10 * 1000 * 4096 / (BANDWIDTH * ENGINE.cache_share))


def test_a_window_limits_what_is_read() -> None:
    page = Page("window of 100", 4096, 0, 100)
    few, many = (
        seconds_of_pass(_work(pages=(page,)), Load(users=1, context=n), _machine())
        for n in (100, 10000)
    )
    assert few == many


def test_experts_that_no_token_is_sent_to_are_not_read() -> None:
    """8 of 128 for each token: one token reads 8, a hundred read nearly all."""
    stack = _weight(128, 512, 2048, name="layers.0.experts.up_proj")
    work = _work(Multiplied(stack, 8 / 128, False))
    one, many = (
        seconds_of_pass(work, Load(users=n, context=10), _machine()).weights for n in (1, 100)
    )
    assert one / many == pytest.approx(8 / 128, rel=0.1)


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100-80gb", "l40s-48gb", "b200-180gb"])
@pytest.mark.parametrize("weights", [None, "awq", "gptq", "mxfp4", "int8", "fp8-weights"])
def test_a_batch_of_one_is_bound_by_bytes(weights: str | None, gpu: str) -> None:
    found = seconds_of_pass(PLAIN, ALONE, _machine(gpu, weights))
    assert found.weights > 0
    assert found.compute == 0


def test_few_rows_take_as_long_as_one() -> None:
    """An instruction of tensor cores multiplies 16 rows, or 64 on Hopper."""
    for gpu, rows in (("a100-80gb", 16), ("h100-80gb", 64)):
        one, many, more = (
            seconds_of_pass(PLAIN, Load(users=n, context=1), _machine(gpu)).weights
            for n in (1, rows, rows + 1)
        )
        assert one == pytest.approx(many)
        assert more > many


def test_latent_attention_multiplies_more_than_it_reads() -> None:
    """128 heads share a latent of 576 numbers: 242 FLOPs for each byte."""
    page = Page("latent of 576 (MLA)", 1152, 0, None)
    layer = LayerWork(pages=(page,), cached_flops=2 * 128 * (576 + 512))
    work = replace(PLAIN, layers=(layer,))
    found = seconds_of_pass(work, Load(users=100, context=5000), _machine("h200-141gb"))
    assert found.cache == 0
    assert found.compute > 2 * 128 * 1088 * 100 * 5000 / 989.4e12


def test_other_attention_is_bound_by_its_cache() -> None:
    layer = LayerWork(pages=(Page("full attention", 4096, 0, None),), cached_flops=4 * 32 * 128)
    work = replace(PLAIN, layers=(layer,))
    found = seconds_of_pass(work, Load(users=100, context=5000), _machine())
    assert found.compute == 0
    assert found.cache == pytest.approx(100 * 5000 * 4096 / (BANDWIDTH * ENGINE.cache_share), 0.02)


def test_the_rank_with_most_experts_is_waited_for() -> None:
    """Of 32 on each of 8 ranks, eight tokens hit 7 on average, and more on the busiest."""
    stack = _weight(32, 512, 2048, name="layers.0.experts.up_proj")
    load = Load(users=1, context=10, ranks=8)
    spread, alone = (
        seconds_of_pass(_work(Multiplied(stack, 8 / 32, False, ranks)), load, _machine()).weights
        for ranks in (8, 1)
    )
    share = 1 - (1 - 8 / 256) ** 8
    assert spread > 1.2 * share * alone / (1 - (1 - 8 / 32))


def test_a_prompt_is_read_by_one_rank_while_others_wait() -> None:
    load = Load(prompt_tokens=125, prompts=0.125, users=10, context=1000, ranks=8)
    assert load.busiest(8192).prompt_tokens == 1000
    assert replace(load, ranks=1).busiest(8192) == replace(load, ranks=1)


def test_ranks_that_each_read_as_many_prompts_wait_for_none() -> None:
    load = Load(prompt_tokens=125, prompts=0.125, users=10, context=1000, ranks=8, is_even=True)
    assert load.busiest(8192) == load


def test_ranks_read_no_more_than_a_pass_may() -> None:
    full = Load(prompt_tokens=8192, prompts=8, users=0, ranks=8)
    assert full.busiest(8192) == full


def test_only_the_last_token_of_a_prompt_goes_through_the_head() -> None:
    head = Multiplied(_weight(128256, WIDTH, name="lm_head.weight"), 1.0, True)
    found = seconds_of_pass(_work(head), PROMPT, _machine())
    token = seconds_of_pass(_work(head), Load(users=1, context=1), _machine())
    assert found.weights == pytest.approx(token.weights)


def test_small_messages_are_latency() -> None:
    sent = Sent("all_reduce", "tp", 8, 2.0 * WIDTH)
    found = seconds_of_pass(_work(sent=(sent, sent)), ALONE, _machine())
    assert found.communication == pytest.approx(2 * ENGINE.message_seconds, rel=0.1)


@pytest.mark.parametrize(
    ("copies", "ranks", "weights", "sent"),
    [
        (8, 4, None, 4 * 2),  # one to each rank, each way in 16 bits
        (2, 4, None, 2 * 2),  # to two of the ranks
        (8, 4, "awq", 4 * 2),  # its products are in 16 bits
        (8, 4, "fp8", 4 * (1 + 2) / 2),  # there in 8 bits, back in 16
        (8, 4, "nvfp4", 4 * (4.5 / 8 + 2) / 2),  # there in 4 bits with scales
    ],
)
def test_a_token_is_sent_once_to_each_rank_that_has_an_expert_of_it(
    copies: int, ranks: int, weights: str | None, sent: float
) -> None:
    """Bytes of each of its values."""
    each = Sent("all_to_all", "ep", ranks, 2.0 * 1024 * copies)
    machine = _machine("b200-180gb", weights)
    found = _as_engines(each, replace(PLAIN, hidden_size=1024), machine)
    assert found.token_bytes == pytest.approx(1024 * sent)


def test_messages_to_all_ranks_are_sent_as_they_are() -> None:
    each = Sent("all_reduce", "tp", 4, 2.0 * 1024)
    assert _as_engines(each, replace(PLAIN, hidden_size=1024), _machine(weights="fp8")) == each


def test_a_message_to_nobody_takes_no_time() -> None:
    work = _work(sent=(Sent("all_reduce", "tp", 1, 2.0 * WIDTH),))
    assert seconds_of_pass(work, ALONE, _machine()).communication == 0


def test_each_operator_that_is_fused_starts_a_share_of_a_kernel() -> None:
    sent = Sent("all_reduce", "tp", 8, 2.0 * WIDTH)
    found = seconds_of_pass(_work(sent=(sent, sent), layers=3), ALONE, _machine())
    assert found.kernels == pytest.approx(3 * (10 - 2) * ENGINE.kernel_seconds)


def test_each_sequence_takes_time_of_the_host() -> None:
    one, many = (
        seconds_of_pass(_work(), Load(users=n, context=1), _machine()).seconds for n in (1, 101)
    )
    assert many - one == pytest.approx(100 * ENGINE.sequence_seconds)


def test_the_host_works_while_the_gpu_computes() -> None:
    """Reading this weight takes longer than looking at one token does."""
    found = seconds_of_pass(PLAIN, ALONE, _machine())
    assert found.weights > ENGINE.sequence_seconds
    assert found.host == ENGINE.step_seconds


def test_a_gpu_that_is_done_waits_for_the_host() -> None:
    found = seconds_of_pass(PLAIN, Load(users=64, context=1), _machine())
    assert found.seconds == pytest.approx(ENGINE.step_seconds + 64 * ENGINE.sequence_seconds)


def test_layers_that_are_alike_are_timed_once_and_counted() -> None:
    one, many = (
        seconds_of_pass(_work(*PLAIN.layers[0].products, layers=n), ALONE, _machine())
        for n in (1, 10)
    )
    assert many.weights == pytest.approx(10 * one.weights)


def test_short_prompts_wait_until_the_host_has_launched_all_layers() -> None:
    short = Load(prompt_tokens=1, prompts=1)
    found = seconds_of_pass(_work(layers=10), short, _machine()).seconds
    host = ENGINE.step_seconds + 10 * ENGINE.launch_seconds + ENGINE.sequence_seconds
    assert found == pytest.approx(host)


def test_passes_without_prompts_are_graphs_that_are_launched_at_once() -> None:
    few, many = (seconds_of_pass(_work(layers=n), ALONE, _machine()) for n in (1, 2))
    kernels = 10 * ENGINE.kernel_seconds
    assert many.seconds - few.seconds < kernels < ENGINE.launch_seconds


def test_eager_modules_launch_each_operator() -> None:
    work = _work(layers=10)
    found = seconds_of_pass(work, ALONE, _machine(engine="eager"))
    assert found.kernels == pytest.approx(100 * KERNEL_SECONDS)
    longest = 100 * max(LAUNCH_SECONDS, KERNEL_SECONDS)
    assert found.seconds == pytest.approx(ENGINES["eager"].step_seconds + longest)


def test_parts_of_a_load_add_up_to_it() -> None:
    whole = Load(800, 4, 100, 80, 500)
    part = whole.part(4)
    assert (part.prompt_tokens, part.prompts, part.users) == (200, 1, 20)
    assert (part.prompt_before, part.context) == (100, 500)


def test_times_add_up() -> None:
    both = PassTime(weights=1.0, host=2.0) + PassTime(weights=3.0).times(2)
    assert both == PassTime(weights=7.0, host=2.0)
    assert (both.seconds, both.bound_by) == (9.0, "weights")


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputsError, match="engine='vllm' is not engine, eager"):
        engine_named("vllm")


def test_shares_are_of_peaks() -> None:
    for engine in ENGINES.values():
        assert 0 < engine.weights_share < 1
        assert 0 < engine.cache_share < 1
        assert 0 < engine.link_share < 1
        assert engine.overlap >= 1


def test_a_faster_memory_makes_tokens_faster() -> None:
    slow, fast = (seconds_of_pass(PLAIN, ALONE, _machine(g)) for g in ("h100-80gb", "h200-141gb"))
    assert 1.3 < slow.weights / fast.weights <= 4800 / 3352


def test_the_machine_says_how_a_weight_is_stored() -> None:
    machine = _machine(weights="fp8")
    assert machine.stored_bytes(_weight(100, 200)) == 100 * 200 + 100 * 4
    assert machine.stored_bytes(_weight(3, 100, 200)) == 3 * (100 * 200 + 100 * 4)
    assert machine.stored_bytes(_weight(100, 200, name="lm_head.weight")) == 2 * 100 * 200
    assert machine.stored_bytes(replace(_weight(100, 200), is_kept=True)) == 2 * 100 * 200
