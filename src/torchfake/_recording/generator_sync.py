"""Positions of recorded draws, and generators moved as eager mode would move them.

Input: operations that draw, as they are recorded. Output: each operation has its position in a
generator's sequence, and generators end where eager mode would have left them. Invariant: a
generator that was passed, or drawn from outside of all modes, is synchronized at once; torch's own
generator, in a deferred mode, when the outermost mode is left.
"""

from __future__ import annotations

import math
import warnings

import torch

from torchfake._core import memory, modes
from torchfake._core.metadata import Metadata
from torchfake._graph.operations import Op
from torchfake._random import fake_generators, recorded_draws
from torchfake._replay.first_use import run_draws
from torchfake._torch import backends, dispatcher
from torchfake._torch.contexts import holding
from torchfake.errors import ReplayError

_lock = recorded_draws.lock


def record_draws(
    op: Op, generator: torch.Generator | None, record: Metadata, num_words: int | None
) -> None:
    """Give `op` its position in the sequence of its generator.

    Args:
        op: a random operation.
        generator: that was passed to it; None: the default generator of the device.
        record: of the tensor that is filled.
        num_words: random words that it draws; None if they cannot be counted.
    """
    num_elements = 0 if num_words is not None else math.prod(record.size)
    fake = None
    if generator is not None:
        fake = fake_generators.fake_generator(generator)
    elif record.device.type != "cpu" and is_simulated(record.device):
        fake = fake_generators.default_generator(record.device)
    if fake is not None:
        with holding(recorded_draws.lock):
            state = fake.beginning()  # first: it may find that it has been seeded
            fake.recorded.add_draw(op, state, num_words, num_elements)
        return
    if generator is None:
        generator = backends.default_generator_of(record.device)
    else:
        generator = backends.canonical_generator(generator)
    was_held = recorded_draws.holds_lock()
    try:
        recorded_draws.lock.acquire()  # not holding(): that takes as long as all the rest
        draws = recorded_draws.draws_of(generator)
        is_first = draws.is_synchronized
        is_later = is_first and generator is torch.default_generator and modes.is_recording()
        if is_later:
            modes.thread.drawn_generators[generator] = None
        on_cpu = draws.device.type == "cpu"
        draws.add_draw_of(op, generator, num_words if on_cpu else None, num_elements)
        recorded_draws.lock.release()
        if is_first and not is_later:
            synchronize(generator)
    except BaseException:  # Ctrl-C: the next draw starts from the generator's own state
        if recorded_draws.holds_lock() and not was_held:
            recorded_draws.lock.release()
        recorded_draws.reset(generator)
        raise


def record_default_draws(op: Op, record: Metadata, num_words: int | None) -> None:
    """Record the draw of `op` from the default generator. While nobody has moved torch's generator,
    a draw that follows another one takes a third of the time.
    """
    if num_words is not None and record.device.type == "cpu":
        with _lock:
            op.draw = recorded_draws.default.next_draw(num_words)
        if op.draw is not None:
            return
    record_draws(op, None, record, num_words)


def is_simulated(device: torch.device) -> bool:
    """Whether `device` is one of the mode's fake machine, or this machine does not have it."""
    state = modes.current()
    machine = None if state is None else state.accelerator
    if machine is not None and machine.device_type == device.type:
        return True
    return not memory.is_available(device)


def synchronize(generator: torch.Generator) -> None:
    """Move `generator` to where eager mode would have left it, if that takes little time."""
    with holding(recorded_draws.lock), dispatcher.as_eager():
        draws = recorded_draws.draws_of(generator)
        if draws.is_synchronized:
            return
        pending = draws.pending_draw
        if pending is not None and not draws.is_cheap_to_resolve:
            draws.desynchronize(generator)
            return
        try:
            if pending is not None:
                run_draws(pending)
            draws.synchronize(generator)
        except ReplayError as error:
            draws.reset()
            warnings.warn(
                "a generator is not in the state that eager would have left, because a draw that "
                f"determines how far it advances cannot be replayed: {error}",
                stacklevel=2,
            )
        except BaseException:  # Ctrl-C: the next draw starts from the generator's own state
            draws.reset()
            raise


def synchronize_all() -> None:
    """Synchronize the generators that were drawn from in the modes of this thread."""
    drawn = modes.thread.drawn_generators
    for generator in list(drawn):
        synchronize(generator)
        drawn.pop(generator, None)


def forget_draws() -> None:
    """Have these generators stay where they are: the next draw starts from there."""
    drawn = modes.thread.drawn_generators
    for generator in list(drawn):
        if not recorded_draws.draws_of(generator).is_synchronized:
            recorded_draws.reset(generator)
        drawn.pop(generator, None)
