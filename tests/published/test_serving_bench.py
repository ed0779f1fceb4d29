"""How published benches ran: numbers that can be counted by hand."""

from __future__ import annotations

import pytest

from tests.published.serving_bench import Limits, tuned
from tests.published.serving_rows import mean_of_burst
from torchfake.distributed.passes.loads import Request
from torchfake.distributed.passes.pass_time import Load, PassTime


@pytest.mark.parametrize(
    ("fitting", "request_", "found"),
    [
        (20.0, Request(1000, 1000), Limits(64, 2048)),  # the least of both
        (100.4, Request(1000, 1000), Limits(128, 2048)),  # 4 x 32 requests
        (300.0, Request(1000, 100), Limits(384, 3328)),  # 3 x 128 requests, 13 x 256 tokens
        (1100.0, Request(1000, 1000), Limits(1280, 2304)),  # 5 x 256 requests, 9 x 256 tokens
        (1e5, Request(1000, 1000), Limits(4096, 8192)),  # the most requests, 8 x 1024 tokens
        (300.0, Request(8192, 1024), Limits(384, 8576)),  # one prompt beside all requests
    ],
)
def test_limits_of_a_pass_are_those_of_the_requests_that_fit(
    fitting: float, request_: Request, found: Limits
) -> None:
    assert tuned(fitting, request_) == found


def _of_tokens(load: Load) -> PassTime:
    """A second for each pass, and one for each token."""
    return PassTime(host=1.0, compute=load.tokens)


def test_prompts_that_come_at_once_are_read_in_passes_of_whole_ones() -> None:
    """Two in the first pass, of 21 seconds, and the third in another one of 11."""
    assert mean_of_burst(_of_tokens, 3, Request(10, 5), 25) == pytest.approx((21 + 21 + 32) / 3)
