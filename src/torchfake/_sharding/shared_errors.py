"""An error on one rank, raised on all participating ranks, so that none waits for the others.

Input: a function to call on this rank. Output: its result, or an error on every rank that names the
rank that failed. Invariant: all ranks exchange the same number of messages, whatever goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torchfake._torch.distributed import dtensors
from torchfake.errors import CheckpointError

_T = TypeVar("_T")


def on_first_rank(do: Callable[[], _T]) -> _T:
    """Call `do` on rank 0; return its result, or raise its error, on all ranks."""
    outcome: tuple[Any, str | None] = None, None
    if dtensors.rank_and_world_size()[0] == 0:
        try:
            outcome = do(), None
        except Exception as error:
            dtensors.broadcast_from_first((None, _message(error)))
            raise
    value, message = dtensors.broadcast_from_first(outcome)
    if message is not None:
        raise CheckpointError(f"rank 0 failed: {message}")
    found: _T = value
    return found


def on_all_ranks(do: Callable[[], _T]) -> _T:
    """Call `do` on all ranks; return this rank's result, or raise an error if any rank failed."""
    result, failure = None, None
    try:
        result = do()
    except Exception as error:
        failure = error
    messages = dtensors.gather_from_ranks(None if failure is None else _message(failure))
    if failure is not None:
        raise failure
    for rank, message in enumerate(messages):
        if message is not None:
            raise CheckpointError(f"rank {rank} failed: {message}")
    done: _T = result  # type: ignore[assignment]
    return done


def _message(error: Exception) -> str:
    return str(error) or type(error).__name__


@contextmanager
def raised_on_all_ranks(tensors: Iterable[Any]) -> Iterator[None]:
    """Context in which an error on one rank is raised on all ranks with shards of `tensors`."""
    try:
        yield
    except Exception as error:
        _exchange(tensors, error)
        raise
    _exchange(tensors, None)


def _exchange(tensors: Iterable[Any], error: Exception | None) -> None:
    """Send the error to the ranks with shards of `tensors`, and raise an error if one failed."""
    kind = dtensors.dtensor_class()
    meshes = {tensor.device_mesh: None for tensor in tensors if isinstance(tensor, kind)}
    for mesh in filter(dtensors.can_communicate, meshes):
        message = None if error is None else _message(error)
        others = dtensors.gather_over_mesh(mesh, message).items()
        failures = [f"rank {rank} failed: {text}" for rank, text in others if text is not None]
        if failures and error is None:
            raise CheckpointError(failures[0])
