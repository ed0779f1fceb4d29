"""Positions of recorded draws, and generators moved as eager mode would move them.

Input: operations that draw, as they are recorded. Output: each operation has its position in a
generator's sequence, and generators end where eager mode would have left them. Invariant: draws
from torch's default CPU generator in a deferred mode move the generator when the outermost mode
exits; all other draws from real generators move these at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from torchfake._core import memory, modes
from torchfake._core.metadata import Metadata
from torchfake._graph.operations import Op
from torchfake._random import fake_generators, recorded_draws
from torchfake._random.generator_memory import state_bytes
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
        generator: the generator that was passed to `op`; None: the default one of the device.
        record: metadata of the tensor that is filled.
        num_words: the number of random words that `op` draws; None if they cannot be counted.
    """
    fake = None
    if generator is not None:
        fake = fake_generators.fake_generator(generator)
    elif record.device.type != "cpu" and is_simulated(record.device):
        fake = fake_generators.default_generator(record.device)
    if fake is not None:
        with holding(recorded_draws.lock):
            state = fake.beginning()  # first: it may find that it has been seeded
            fake.recorded.add_draw(op, state, num_words)
        return
    if generator is None:
        generator = backends.default_generator_of(record.device)
    else:
        generator = backends.canonical_generator(generator)
    was_held = recorded_draws.holds_lock()
    try:
        recorded_draws.lock.acquire()  # not holding(), which takes as long as the rest
        draws = recorded_draws.draws_of(generator)
        is_first = draws.is_synchronized
        is_later = is_first and generator is torch.default_generator and modes.is_recording()
        if is_later:
            modes.thread.drawn_generators[generator] = None
        on_cpu = draws.device.type == "cpu"
        draws.add_draw_of(op, generator, num_words if on_cpu else None)
        recorded_draws.lock.release()
        if is_first and not is_later:
            synchronize(generator)
    except BaseException:  # Ctrl-C: the next draw starts from the generator's own state
        if recorded_draws.holds_lock() and not was_held:
            recorded_draws.lock.release()
        recorded_draws.reset(generator)
        raise


def record_default_draws(op: Op, record: Metadata, num_words: int | None) -> None:
    """Record the draw of `op` from the default generator. As long as the program has not moved that
    generator, the draw continues from the recorded ones, and the generator's state is not read.
    """
    if num_words is not None and record.device.type == "cpu":
        with _lock:
            op.draw = recorded_draws.default.next_draw(num_words)
        if op.draw is not None:
            return
    record_draws(op, None, record, num_words)


def is_simulated(device: torch.device) -> bool:
    """Whether `device` belongs to the mode's fake machine, or does not exist on this machine."""
    state = modes.current()
    machine = None if state is None else state.accelerator
    if machine is not None and machine.device_type == device.type:
        return True
    return not memory.is_available(device)


def synchronize(generator: torch.Generator) -> None:
    """Move `generator` to where eager mode would have left it: what cannot be counted is drawn."""
    with holding(recorded_draws.lock), dispatcher.as_eager():
        draws = recorded_draws.draws_of(generator)
        if draws.is_synchronized:
            return
        pending = draws.pending_draw
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


def lend_all() -> Callable[[], None]:
    """Synchronize all generators, for real draws. The result is to be called after these: it undoes
    that for each generator that was not drawn from, so that records do not depend on the loan.
    """
    drawn = [(each, recorded_draws.draws_of(each)) for each in modes.thread.drawn_generators]
    before = [(generator.get_state(), draws.end()) for generator, draws in drawn]
    synchronize_all()
    lent = [state_bytes(generator.get_state()) for generator, _ in drawn]

    def give_back() -> None:
        with holding(recorded_draws.lock):
            for (generator, draws), (state, end), then in zip(drawn, before, lent, strict=True):
                if state_bytes(generator.get_state()) == then:
                    generator.set_state(state)
                    draws.return_to(end)
                    modes.thread.drawn_generators[generator] = None

    return give_back


def synchronize_all() -> None:
    """Synchronize the generators that were drawn from in the modes of this thread."""
    drawn = modes.thread.drawn_generators
    for generator in list(drawn):
        synchronize(generator)
        drawn.pop(generator, None)


def forget_draws() -> None:
    """Leave the generators drawn from in the modes of this thread in their present states."""
    drawn = modes.thread.drawn_generators
    for generator in list(drawn):
        if not recorded_draws.draws_of(generator).is_synchronized:
            recorded_draws.reset(generator)
        drawn.pop(generator, None)
