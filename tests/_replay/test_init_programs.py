"""Generated initialization programs: recorded and replayed in any order, they have eager's bits."""

from __future__ import annotations

import random
import warnings

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import hypothesis_profiles as hypothesis_profiles  # how many examples are drawn
from tests._replay.programs import ACTIONS, State, Step, run, run_steps
from tests.oracle import bits
from tests.tiny_tiles import tiny_tiles
from torchfake import deferred_mode, is_deferred, materialize_tensor

steps = st.tuples(st.sampled_from(sorted(ACTIONS)), *[st.integers(0, 40)] * 3)


@given(
    program=st.lists(steps, min_size=1, max_size=25),
    outside=st.integers(0, 10),
    order=st.integers(0, 1 << 30),
)
def test_programs(program: list[Step], outside: int, order: int) -> None:
    """The last `outside` steps run after the mode was left, on tensors that are still deferred."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, outside, order)


@given(
    program=st.lists(steps, min_size=1, max_size=25),
    outside=st.integers(0, 10),
    order=st.integers(0, 1 << 30),
    num_bytes=st.sampled_from([0, 300, 5_000]),
)
def test_programs_tile_by_tile(
    program: list[Step], outside: int, order: int, num_bytes: int
) -> None:
    """The same, in tiles of 32 elements, on two threads, in little memory."""
    with warnings.catch_warnings(), tiny_tiles(num_scratch_bytes=num_bytes):
        warnings.simplefilter("ignore")
        check(program, outside, order)


def check(program: list[Step], outside: int, order: int) -> None:
    torch.manual_seed(order)
    inside, after = program[: len(program) - outside], program[len(program) - outside :]
    eager = run(inside)
    eager.leave()
    run_steps(eager, after)
    state, passed = torch.get_rng_state(), eager.generator.get_state()
    torch.manual_seed(order)
    with deferred_mode():
        deferred = run(inside)
    deferred.leave()
    run_steps(deferred, after)
    assert repr(deferred.read) == repr(eager.read)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(deferred.generator.get_state(), passed)
    for i in random.Random(order).sample(range(len(deferred.tensors)), len(deferred.tensors)):
        materialize_tensor(deferred.tensors[i])
        assert_same_tensor(eager.tensors[i], deferred.tensors[i])
    for one, other in zip(eager.aside, deferred.aside, strict=True):
        assert_same_tensor(one, materialize_tensor(other))
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_state(eager, deferred)
    if can_be_written(eager.tensors[0]):  # what shares memory does
        for both in (eager, deferred):
            with torch.inference_mode(eager.tensors[0].is_inference()), torch.no_grad():
                both.tensors[0].add_(1)
        assert_same_state(eager, deferred)


def can_be_written(tensor: torch.Tensor) -> bool:
    return 0 not in tensor.stride() and not tensor._is_view()


def assert_same_state(eager: State, deferred: State) -> None:
    for one, other in zip(eager.tensors, deferred.tensors, strict=True):
        assert_same_tensor(one, other)


def strides(tensor: torch.Tensor) -> list[int]:
    """Without those of dimensions of length 1, which torch's Python meta kernels choose freely: see
    docs/limits.md.
    """
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1]


def assert_same_tensor(eager: torch.Tensor, materialized: torch.Tensor) -> None:
    assert not is_deferred(materialized)
    assert type(materialized) is type(eager)
    assert (materialized.shape, materialized.dtype) == (eager.shape, eager.dtype)
    assert strides(materialized) == strides(eager)
    assert materialized.storage_offset() == eager.storage_offset()
    assert materialized.requires_grad == eager.requires_grad
    assert materialized.is_inference() == eager.is_inference()
    assert bits(materialized) == bits(eager)
