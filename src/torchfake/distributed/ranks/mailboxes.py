"""Point-to-point messages, kept for the receivers that are run after their senders.

Input: point-to-point messages of ranks that are run one after the other. Output: the values of the
messages, where known (shapes and votes are, activations are not). Invariant: the messages from one
rank to another are received in the order in which they were sent, and with the same size.

A rank that needs a value that has not been sent yet cannot continue: its run is abandoned, and
started again when the value has been sent.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch

from torchfake.errors import InputsError
from torchfake.observe import FakeTensor, known_value, no_mode, set_known_value

Channel = tuple[int, int, int]
"""The sending rank, the receiving rank, and the tag."""


class Letter(NamedTuple):
    """One message."""

    num_bytes: int
    value: torch.Tensor | None  # None: not known


class WaitsForRank(BaseException):  # not an Exception, so that only `run_ranks` handles it
    """A rank needs the value of a message that has not been sent yet."""

    def __init__(self, channel: Channel, number: int) -> None:
        super().__init__(f"message {number} of rank {channel[0]} to rank {channel[1]}")
        self.channel, self.number = channel, number


class Mailboxes:
    """The messages of all ranks that were run."""

    def __init__(self) -> None:
        self.sent: defaultdict[Channel, list[Letter]] = defaultdict(list)
        self.received: defaultdict[Channel, list[int]] = defaultdict(list)  # bytes

    def of_rank(self, rank: int) -> Mailbox:
        """The mailbox for a run of a rank; forgets the messages of an earlier run of this rank."""
        for channel in [channel for channel in self.sent if channel[0] == rank]:
            del self.sent[channel]
        for channel in [channel for channel in self.received if channel[1] == rank]:
            del self.received[channel]
        return Mailbox(self, rank)

    def has(self, waits: WaitsForRank) -> bool:
        """Whether the message that a rank waits for has been sent."""
        return len(self.sent.get(waits.channel, ())) > waits.number

    def check_all_received(self, ranks: set[int]) -> None:
        """Check that all messages between these ranks were received.

        Raises:
            InputsError: if not; the message names a sender and a receiver.
        """
        for channel in sorted({*self.sent, *self.received}):
            source, destination, _ = channel
            sent = [letter.num_bytes for letter in self.sent.get(channel, ())]
            received = self.received.get(channel, [])
            if {source, destination} <= ranks and len(sent) != len(received):
                raise InputsError(
                    f"rank {source} sends {len(sent)} messages to rank {destination}, which "
                    f"receives {len(received)}: one of them would wait forever. Each send needs a "
                    "receive: give all ranks the same schedule, stages and micro-batches"
                )


class Mailbox:
    """The messages to and from the rank that is being run."""

    def __init__(self, boxes: Mailboxes, rank: int) -> None:
        self._boxes, self.rank = boxes, rank
        self.peers: set[int] = set()

    def send(self, tensor: FakeTensor, to: int, tag: int) -> None:
        """Keep a message that is sent."""
        self.peers.add(to)
        letter = Letter(tensor.nbytes, _known_value(tensor))
        self._boxes.sent[self.rank, to, tag].append(letter)

    def receive(self, tensor: FakeTensor, source: int, tag: int) -> None:
        """Set the value of a receive buffer to that of the message sent to it.

        Raises:
            WaitsForRank: if the message has integers, which the program may read, and has not been
                sent yet.
            InputsError: if a message of another size was sent.
        """
        self.peers.add(source)
        channel = source, self.rank, tag
        received = self._boxes.received[channel]
        letters, number = self._boxes.sent.get(channel, ()), len(received)
        received.append(tensor.nbytes)
        if number < len(letters):
            self._deliver(letters[number], tensor, channel)
        elif not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            raise WaitsForRank(channel, number)

    def _deliver(self, letter: Letter, tensor: FakeTensor, channel: Channel) -> None:
        if letter.num_bytes != tensor.nbytes:
            raise InputsError(
                f"rank {channel[0]} sends {letter.num_bytes:,} bytes to rank {channel[1]}, which "
                f"receives {tensor.nbytes:,} ({tensor.dtype} {list(tensor.shape)}): give both the "
                "same shapes, with micro-batches of equal sizes"
            )
        if letter.value is not None:
            set_known_value(tensor, letter.value)


def _known_value(tensor: FakeTensor) -> torch.Tensor | None:
    is_number = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    value = known_value(tensor, "a message") if is_number else None
    if value is None:
        return None
    with no_mode():
        return value.clone()
