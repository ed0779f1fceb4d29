"""Seconds of one collective.

Input: a message, how many ranks of its group are in one node, the links. Output: seconds.
Invariant: an alpha-beta model (Hockney 1994). NCCL's rings take a start, a latency per step, and
the time to send each rank's bytes over the slowest link; other messages are sent directly.
"""

from __future__ import annotations

from typing import NamedTuple

from torchfake.inspect.timing.commands import Message
from torchfake.observe import RING_SHARES

GPUS_PER_NODE = 8

_START_SECONDS = 10e-6
_STEP_SECONDS = 1e-6  # from one GPU of a node to the next
_NETWORK_STEP_SECONDS = 5e-6  # from node to node
_LINK_SHARE = 0.80
"""Share of NVLink's bandwidth: nccl-tests' all_gather reaches about 360 of 450 GB/s on DGX H100."""
_NETWORK_SHARE = 0.85

_TO_ONE_RANK = ("permute", "send", "recv")


NETWORK_BYTES = 50e9
"""A port of 400 Gb/s for each GPU, as in NVIDIA's DGX H100."""


class Links(NamedTuple):
    """The links between ranks, in bytes/s per GPU and direction."""

    link_bytes: float  # in a node
    network_bytes: float = NETWORK_BYTES  # between nodes
    gpus_per_node: int = GPUS_PER_NODE


def network_gbits(links: Links | None) -> float:
    """Gb/s of each GPU between nodes."""
    return 8e-9 * (NETWORK_BYTES if links is None else links.network_bytes)


def network_text(links: Links | None) -> str:
    """The network between nodes, as text."""
    return f"{network_gbits(links):g} Gb/s for each GPU, between nodes of {gpus_per_node(links)}"


def gpus_per_node(links: Links | None) -> int:
    """The number of GPUs in a node; NVIDIA's 8 where the links are not known."""
    return GPUS_PER_NODE if links is None else links.gpus_per_node


def seconds_of_message(message: Message, in_node: int, links: Links) -> float:
    """How long a collective runs if `in_node` ranks of its group are in one node."""
    size = message.group_size
    if size < 2:
        return 0.0
    if message.collective in ("all_to_all", *_TO_ONE_RANK):
        return _START_SECONDS + _directly(message, in_node, links)
    ring = RING_SHARES.get(message.collective)
    share = 1.0 if ring is None else ring(size)
    bandwidth, step, num_steps = links.link_bytes * _LINK_SHARE, _STEP_SECONDS, size - 1
    if in_node < size:
        # A ring enters and leaves each node once; NCCL builds one ring for each port of the node.
        bandwidth = min(bandwidth, links.network_bytes * _NETWORK_SHARE * in_node)
        step, num_steps = _NETWORK_STEP_SECONDS, -(-size // in_node)
    if message.collective == "all_reduce":
        num_steps *= 2
    return _START_SECONDS + num_steps * step + message.num_bytes * share / bandwidth


def _directly(message: Message, in_node: int, links: Links) -> float:
    """Seconds of a message that each GPU sends without a ring: over NVLink to the ranks of its own
    node and, at the same time, through its own port to all other ranks.
    """
    size, num_bytes = message.group_size, message.num_bytes
    near, far = (in_node - 1) / size, (size - in_node) / size
    if message.collective in _TO_ONE_RANK:  # the slowest message decides: that between two nodes
        near, far = (1.0, 0.0) if in_node == size else (0.0, 1.0)
    inside = _STEP_SECONDS + near * num_bytes / (links.link_bytes * _LINK_SHARE)
    if in_node == size:
        return inside
    port = links.network_bytes * _NETWORK_SHARE
    return max(inside, _NETWORK_STEP_SECONDS + far * num_bytes / port)
