"""Point-to-point messages on the streams of a GPU, and the streams that wait for them.

Input: calls of ``isend``, ``irecv`` and ``batch_isend_irecv`` on fakes. Output: work objects that
hold the sent tensors until they are waited for, as with NCCL and gloo; commands for the time of a
step. Invariant: unless a rank is being run, torch's functions behave as usual.

NCCL puts a message on a stream for its two ranks, and the messages of a batch, which begin
together, on the stream of their group. In both cases this stream waits for the work submitted to
the current stream so far, and ``wait`` makes the current stream wait for the messages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from torchfake.inspect.timing.commands import CommandRecorder, Message, Place
from torchfake.observe import Patch, observers


class Exchanges:
    """The point-to-point messages of a rank, in order.

    Args:
        commands: records commands on streams; None: the device has no streams.
        place: returns the place in the step that a command comes from.
        number_of: returns the number of the stream for a hashable key.
    """

    def __init__(
        self,
        commands: CommandRecorder | None,
        place: Callable[[], Place],
        number_of: Callable[[Any], int],
    ) -> None:
        self._commands, self._place, self._number_of = commands, place, number_of
        self._open: list[tuple[Message, Any]] | None = None  # the messages of a running `run`

    def add(self, message: Message, group: Any) -> None:
        """Add a message that was sent or received; outside `run`, also wait for it."""
        if self._open is not None:
            self._open.append((message, group))
        elif self._commands is not None:
            self.wait_for(self._put([(message, group)]))

    def run(self, function: Callable[[], Any], tensors: list[torch.Tensor]) -> Any:
        """Call a function that sends or receives tensors. Returns a `_Work` for all its messages;
        for a nested call, inside a batch, the function's own result.
        """
        if self._open is not None:
            return function()  # one message of a batch
        self._open = []
        try:
            result = function()
        finally:
            messages, self._open = self._open, None
        event = self._put(messages) if messages and self._commands is not None else None
        work = _Work(result, tensors, self, event)
        return [work] if isinstance(result, list) else work

    def wait_for(self, event: int | None) -> None:
        """Make the current stream wait for an exchange."""
        if event is not None and self._commands is not None:
            self._commands.wait_for(event, self._place().stream)

    def _put(self, messages: list[tuple[Message, Any]]) -> int:
        assert self._commands is not None
        first, group = messages[0]
        is_alone = len(messages) == 1 and first.ends is not None
        of_whom = tuple(sorted(first.ends or ())) if is_alone else ()
        stream = self._number_of(("messages", str(group), of_whom))
        return self._commands.exchange([each for each, _ in messages], stream, self._place())


class _Work:
    """The work object of an exchange, which holds the tensors until `wait`."""

    def __init__(self, work: Any, tensors: list[Any], exchanges: Exchanges, event: Any) -> None:
        self._works = work if isinstance(work, list) else [work]
        self._tensors, self._exchanges, self._event = tensors, exchanges, event

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        for work in self._works:
            work.wait(*args, **kwargs)
        self._exchanges.wait_for(self._event)
        self._tensors = []
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._works[-1], name)


def _current() -> Exchanges | None:
    found = [each.exchanges for each in observers() if hasattr(each, "exchanges")]
    return found[-1] if found else None


@functools.cache  # so that both modules get one function: torch compares by identity
def _one(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        exchanges, call = _current(), functools.partial(original, tensor, *args, **kwargs)
        return call() if exchanges is None else exchanges.run(call, [tensor])

    return replacement


@functools.cache
def _several(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(p2p_op_list: Any) -> Any:
        exchanges, call = _current(), functools.partial(original, p2p_op_list)
        if exchanges is None:
            return call()
        return exchanges.run(call, [op.tensor for op in p2p_op_list])

    return replacement


def patches_of_messages() -> list[Patch]:
    """The patches that intercept asynchronous messages."""
    made = {"isend": _one, "irecv": _one, "batch_isend_irecv": _several}
    owners = dist, dist.distributed_c10d
    return [Patch(owner, name, make) for name, make in made.items() for owner in owners]
