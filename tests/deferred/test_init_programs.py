"""Generated initialisation programs: recorded and replayed in any order, they have eager's bits."""

from __future__ import annotations

import random
import warnings

import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import bits
from programs import ACTIONS, State, Step, go_on, run

import profiles as profiles  # how many programs are drawn
from tiny_pieces import tiny_pieces
from torchfake import deferred_mode, is_deferred, materialize_tensor

steps = st.tuples(st.sampled_from(sorted(ACTIONS)), *[st.integers(0, 40)] * 3)


@given(
    program=st.lists(steps, min_size=1, max_size=25),
    outside=st.integers(0, 10),
    order=st.integers(0, 1 << 30),
)
def test_programs(program: list[Step], outside: int, order: int) -> None:
    """The last `outside` steps run after the mode has been left, on what is still deferred."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, outside, order)


@given(
    program=st.lists(steps, min_size=1, max_size=25),
    outside=st.integers(0, 10),
    order=st.integers(0, 1 << 30),
    num_bytes=st.sampled_from([0, 300, 5_000]),
)
def test_programs_piece_by_piece(
    program: list[Step], outside: int, order: int, num_bytes: int
) -> None:
    """The same, cut to pieces of 32 elements and done on two threads in little memory."""
    with warnings.catch_warnings(), tiny_pieces(num_scratch_bytes=num_bytes):
        warnings.simplefilter("ignore")
        check(program, outside, order)


def check(program: list[Step], outside: int, order: int) -> None:
    torch.manual_seed(order)
    inside, after = program[: len(program) - outside], program[len(program) - outside :]
    eager = run(inside)
    eager.leave()
    go_on(eager, after)
    state, passed = torch.get_rng_state(), eager.generator.get_state()
    torch.manual_seed(order)
    with deferred_mode():
        made = run(inside)
    made.leave()
    go_on(made, after)
    assert repr(made.read) == repr(eager.read)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(made.generator.get_state(), passed)
    for i in random.Random(order).sample(range(len(made.tensors)), len(made.tensors)):
        materialize_tensor(made.tensors[i])
        assert_same_tensor(eager.tensors[i], made.tensors[i])
    for one, other in zip(eager.aside, made.aside, strict=True):
        assert_same_tensor(one, materialize_tensor(other))
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_state(eager, made)
    if can_be_written(eager.tensors[0]):  # what shares memory does
        for both in (eager, made):
            with torch.inference_mode(eager.tensors[0].is_inference()), torch.no_grad():
                both.tensors[0].add_(1)
        assert_same_state(eager, made)


def can_be_written(tensor: torch.Tensor) -> bool:
    return 0 not in tensor.stride() and not tensor._is_view()


def assert_same_state(eager: State, made: State) -> None:
    for one, other in zip(eager.tensors, made.tensors, strict=True):
        assert_same_tensor(one, other)


def strides(tensor: torch.Tensor) -> list[int]:
    """But for dims of length one, whose stride torch's Python meta kernels make up: see limits."""
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1]


def assert_same_tensor(eager: torch.Tensor, made: torch.Tensor) -> None:
    assert not is_deferred(made)
    assert type(made) is type(eager)
    assert (made.shape, made.dtype) == (eager.shape, eager.dtype)
    assert strides(made) == strides(eager)
    assert made.storage_offset() == eager.storage_offset()
    assert made.requires_grad == eager.requires_grad
    assert made.is_inference() == eager.is_inference()
    assert bits(made) == bits(eager)
