"""What becomes of generators while draws are recorded.

Enters: operations that draw, as they are recorded. Leaves: their places in a generator's stream,
and generators where eager would have left them. Invariant: a generator that was passed, or drawn
from outside of all modes, is settled at once; torch's own, in a deferred mode, when that is left.
"""

from __future__ import annotations

import math
import warnings

import torch

from torchfake import _private, _replay, _state, _streams
from torchfake._graph import Op
from torchfake._metadata import Metadata
from torchfake.errors import ReplayError


def take_draws(
    op: Op, generator: torch.Generator | None, record: Metadata, taken: int | None
) -> None:
    """Give `op` its place in the stream of its generator."""
    num_elements = 0 if taken is not None else math.prod(record.size)
    if generator is None:
        if record.device.type != "cpu" and not _is_there():
            with _streams.lock:
                stream, actual = _streams.pretended_stream(record.device)
                stream.draw(op, actual, taken, num_elements)
            return
        generator = _private.default_generator_of(record.device)
    else:
        generator = _private.same_object(generator)
    with _streams.lock:
        stream = _streams.stream_of(generator)
        is_first = stream.is_settled
        on_cpu = stream.device.type == "cpu"
        stream.draw(op, generator.get_state(), taken if on_cpu else None, num_elements)
    if is_first:
        if _state.is_recording() and generator is torch.default_generator:
            _state.thread.modes[-1].drawn_from[generator] = None
        else:
            settle(generator)


def _is_there() -> bool:
    """Whether CUDA is what this machine has, and has one."""
    state = _state.current()
    is_pretended = state is not None and state.cuda is not None
    return not is_pretended and torch.cuda.is_available()


def settle(generator: torch.Generator) -> None:
    """Move `generator` to where eager would have left it, if that takes little time."""
    with _streams.lock, _private.as_eager():
        stream = _streams.stream_of(generator)
        if stream.is_settled:
            return
        if stream.waits_for is not None and not stream.is_cheap:
            stream.give_up(generator)
            return
        try:
            if stream.waits_for is not None:
                _replay.finish_draws(stream.waits_for)
            stream.settle(generator)
        except ReplayError as error:
            stream.forget()
            warnings.warn(
                "a generator is not where eager would have left it, for a draw that would tell "
                f"cannot be done again: {error}",
                stacklevel=2,
            )
        except BaseException:  # Ctrl-C: what is drawn next begins anew
            stream.forget()
            raise


def settle_all() -> None:
    """The same of all generators that were drawn from in the modes of this thread."""
    for state in _state.thread.modes:
        for generator in state.drawn_from:
            settle(generator)
