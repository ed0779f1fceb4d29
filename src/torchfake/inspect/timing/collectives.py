"""Seconds of one collective.

Input: a message, how many ranks of its group are in one node, the links. Output: seconds.
Invariant: an alpha-beta model (Hockney 1994) of NCCL's rings: a start, a latency for each step of
the ring, and what each rank sends through the slowest link. Called by: ``timing/schedule``.
"""

from __future__ import annotations

from typing import NamedTuple

from torchfake._operators.collectives import RING_SHARES
from torchfake.inspect.timing.commands import Message

GPUS_PER_NODE = 8

_START_SECONDS = 10e-6
_STEP_SECONDS = 1e-6  # from one GPU of a node to the next
_NETWORK_STEP_SECONDS = 5e-6  # from node to node
_LINK_SHARE = 0.80
"""Of NVLink: nccl-tests' all_gather has a bus bandwidth of some 360 GB/s on DGX H100, of 450."""
_NETWORK_SHARE = 0.85


class Links(NamedTuple):
    """What connects the ranks. Bytes/s are of one direction, for each GPU."""

    link_bytes: float  # in a node
    network_bytes: float = 50e9  # between nodes: a port of 400 Gb/s, as in NVIDIA's DGX H100
    gpus_per_node: int = GPUS_PER_NODE


def seconds_of_message(message: Message, in_node: int, links: Links) -> float:
    """How long a collective runs; `in_node` ranks of its group are in one node."""
    size = message.group_size
    if size < 2:
        return 0.0
    ring = RING_SHARES.get(message.collective)
    share = 1.0 if ring is None else ring(size)
    bandwidth, step, num_steps = links.link_bytes * _LINK_SHARE, _STEP_SECONDS, size - 1
    if in_node < size:
        # A ring enters and leaves each node once; NCCL makes one for each port of the node.
        bandwidth = min(bandwidth, links.network_bytes * _NETWORK_SHARE * in_node)
        step, num_steps = _NETWORK_STEP_SECONDS, -(-size // in_node)
    if message.collective == "all_reduce":
        num_steps *= 2
    return _START_SECONDS + num_steps * step + message.num_bytes * share / bandwidth
