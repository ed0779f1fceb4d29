"""First tokens and the steady state of a server, against a simulation token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.distributed.serving.simulated import Simulation
from tests.distributed.serving.test_serve import served
from torchfake.distributed import serve
from torchfake.distributed.passes.loads import Request, reading_seconds, static_batch, steady
from torchfake.distributed.passes.pass_time import Load, PassTime
from torchfake.distributed.serving.server import Server
from torchfake.distributed.serving.serving_plan import ServingPlan

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import

MOST = 4096


@pytest.fixture(scope="module")
def plan() -> ServingPlan:
    return serve("transformers:LlamaForCausalLM", gpu="h100-80gb", context=1024)


@pytest.fixture(scope="module")
def server(plan: ServingPlan) -> Server:
    return plan.server


GRID = [
    (1, 64, 256), (1, 1024, 128), (4, 1024, 128), (16, 64, 256), (16, 1024, 128), (16, 4000, 100),
    (64, 1024, 128), (64, 2000, 16), (200, 1024, 128), (200, 4000, 100),
]  # fmt: skip
"""Users, tokens of prompts and of answers: from one user to several times what prompts can take."""


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(("users", "prompt", "answer"), GRID)
def test_the_steady_state_is_that_of_a_simulation(
    users: int, prompt: int, answer: int, ahead: int, server: Server
) -> None:
    request = Request(prompt, answer)
    found = steady(server.time_of, users, request, MOST, ahead)
    seen = Simulation(server.time_of, users, request, MOST, ahead=ahead).run()
    assert found.seconds == pytest.approx(seen.seconds_per_token, rel=0.04)
    assert found.tokens_per_second == pytest.approx(seen.tokens_per_second, rel=0.04)
    assert found.first_token_seconds == pytest.approx(seen.first_token_seconds, rel=0.25)


def test_beyond_the_knee_requests_wait_as_in_a_simulation(plan: ServingPlan) -> None:
    """Twice as many users as fit: the others wait until one has ended."""
    server, request = plan.server, plan.server.request
    fitting = plan.most_users_on_average
    beyond = replace(plan, users=2 * fitting)
    most = server.most_tokens
    seen = Simulation(server.time_of, 2 * fitting, request, most, under_way=fitting).run(6)
    assert beyond.steady is not None
    assert beyond.queue_seconds is not None
    assert beyond.steady.tokens_per_second == pytest.approx(seen.tokens_per_second, rel=0.04)
    first = beyond.queue_seconds + beyond.steady.first_token_seconds
    assert first == pytest.approx(seen.first_token_seconds, rel=0.06)


def test_users_that_fit_do_not_wait_for_memory(plan: ServingPlan) -> None:
    assert plan.queue_seconds == 0


def _of_tokens(load: Load) -> PassTime:
    """A second for each pass, and one for each token."""
    return PassTime(host=1.0, compute=load.tokens)


def test_a_prompt_is_read_in_passes_of_the_most_tokens() -> None:
    assert reading_seconds(_of_tokens, Request(100, 5), 40) == 3 + 100
    assert reading_seconds(_of_tokens, Request(40, 5), 40) == 1 + 40


def test_a_request_waits_for_the_pass_that_the_host_has_launched_ahead() -> None:
    """Beside one other, it meets a pass under way every second time it comes."""
    behind, ahead = (steady(_of_tokens, 2, Request(100, 50), 1000, n) for n in (0, 1))
    more = ahead.first_token_seconds - behind.first_token_seconds
    assert more == pytest.approx(ahead.seconds / 2, rel=0.1)


def test_a_single_request_waits_for_nobody() -> None:
    found = steady(_of_tokens, 1, Request(100, 50), 1000)
    assert found.first_token_seconds == 101
    assert found.seconds == 2
    assert found.tokens_per_second == pytest.approx(50 / (101 + 49 * 2))


def test_a_static_batch_is_its_prompts_and_then_its_steps() -> None:
    """Two prompts fit into a pass; three are read in two passes, and each step has three tokens."""
    reading = (1 + 20) + (1 + 10)
    assert static_batch(_of_tokens, 3, Request(10, 5), 20) == reading + 4 * (1 + 3)


def test_more_users_give_more_tokens_and_slower_ones(server: Server) -> None:
    found = [server.with_users(n) for n in (1, 8, 64)]
    assert sorted(found, key=lambda each: each.tokens_per_second) == found
    assert sorted(found, key=lambda each: each.seconds) == found
    assert sorted(found, key=lambda each: each.first_token_seconds) == found


def test_answers_of_one_token_are_read_only(server: Server) -> None:
    found = steady(server.time_of, 8, Request(512, 1), MOST)
    assert found.tokens_per_second == pytest.approx(8 / found.first_token_seconds, rel=0.01)


def test_a_prompt_takes_no_less_than_alone() -> None:
    """Stages compute side by side for others, and one after the other for a prompt."""
    found = [steady(_of_tokens, 2, Request(100, 50), 1000, 1, alone) for alone in (0, 500)]
    more = found[1].first_token_seconds - found[0].first_token_seconds
    # the share of time in which a request meets the other one changes with it
    assert more == pytest.approx(500 - 102, rel=0.05)


def test_first_tokens_of_a_pipeline_grow_with_its_users() -> None:
    plan = served(mesh="pp=2", suggests=False)
    found = [plan.with_users(n).first_token_seconds for n in (1, 8, 64, 256)]
    assert found == sorted({*found})
    assert found[0] == pytest.approx(plan.first_token_seconds)  # the same sum in another order
