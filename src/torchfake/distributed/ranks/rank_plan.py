"""The memory and communication of one rank, which stands for all ranks with shards of equal sizes.

Input: the estimate of a rank's step, and its traffic. Output: a :class:`RankPlan`, plain data.
Invariant: the bytes of all categories at the peak add up to the peak.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchfake.distributed.layout import Layout
from torchfake.distributed.ranks.rank_tracker import Traffic
from torchfake.inspect.allocator.outside import COMMUNICATOR_BYTES
from torchfake.inspect.memory.estimate_record import Estimate, Peak
from torchfake.inspect.storages.lifetimes import CATEGORIES
from torchfake.inspect.timing.collectives import Links, gpus_per_node
from torchfake.inspect.timing.commands import Message
from torchfake.inspect.timing.efficiency import Shares
from torchfake.inspect.timing.hardware import Hardware
from torchfake.inspect.timing.machine import InNode
from torchfake.inspect.timing.schedule import Schedule, schedule_of

SHOWN_CATEGORIES = (
    *("parameters", "gradients", "optimizer state", "activations", "unsharded parameters"),
    *("communication", "temporaries", "buffers", "inputs"),
)
"""The categories of a rank's memory, in the order of tables."""


def in_node_of(layout: Layout, links: Links | None) -> InNode:
    """A function that returns how many of the ranks of a message are in one node."""
    per_node = gpus_per_node(links)

    def in_node(message: Message) -> int:
        if message.ends is not None:
            nodes = {rank // per_node for rank in message.ends}
            return message.group_size if len(nodes) == 1 else 1
        return layout.ranks_in_node(message.axis, message.group_size, per_node)

    return in_node


@dataclass(frozen=True, repr=False)
class RankPlan:
    """The memory and communication of each of a group of ranks with shards of equal sizes."""

    ranks: tuple[int, ...]  # the first of them was run
    traffic: tuple[Traffic, ...]  # the messages of each rank
    estimate: Estimate = field(compare=False)  # the estimate of the step
    joint_schedule: Schedule | None = field(default=None, compare=False)
    """The schedule together with the ranks that it exchanges messages with, and waits for."""

    @property
    def bubble_seconds(self) -> float | None:
        """The time in which a pipeline stage is idle because it waits for other stages; None if no
        rank waits for another, and on a CPU.
        """
        return None if self.joint_schedule is None else self.joint_schedule.bubble_seconds

    @property
    def bubble_share(self) -> float | None:
        """The bubble as a share of the step."""
        found = self.joint_schedule
        return None if found is None else found.bubble_seconds / found.seconds

    def schedule(
        self,
        layout: Layout,
        links: Links | None = None,
        *,
        hardware: Hardware | None = None,
        shares: Shares | None = None,
    ) -> Schedule | None:
        """When each kernel and collective of a rank's step runs; None if that is not known.

        Args:
            layout: the mesh.
            links: the links between ranks; by default as in NVIDIA's DGX H100: nodes of 8, the
                GPU's own links inside a node, and 400 Gb/s per GPU between nodes.
            hardware: the peak rates of the GPU; by default those of its datasheet.
            shares: the fractions of these that kernels reach; by default those of the GPU's
                generation.
        """
        gpu, commands = self.estimate.gpu, self.estimate.commands
        if gpu is None:
            return None
        return schedule_of(commands, gpu, links, in_node_of(layout, links), hardware, shares)

    @property
    def peak_bytes(self) -> int:
        """Peak memory, from the second step on."""
        return self.estimate.peak_bytes

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The most memory that the rank's caching allocator reserves; None on a CPU."""
        return self.estimate.peak_reserved_bytes

    @property
    def nvidia_smi_bytes(self) -> int | None:
        """The most memory that ``nvidia-smi`` would show: reserved memory, the CUDA context
        (assumed to be 512 MiB), and the buffers of NCCL (256 MiB for each process group).
        """
        shown = self.estimate.nvidia_smi_bytes
        groups = {(row.axis, row.group_size) for row in self.traffic}
        return None if shown is None else shown + len(groups) * COMMUNICATOR_BYTES

    @property
    def peak(self) -> Peak:
        """The moment of peak memory."""
        return self.estimate.peak

    @cached_property
    def most_bytes(self) -> dict[str, int]:
        """The highest bytes of each category at any moment. The moments differ by category, so
        these bytes do not add up to the peak.
        """
        category = self.estimate.lives.category
        masks = {name: category == CATEGORIES.index(name) for name in SHOWN_CATEGORIES}
        held = self.estimate.held_bytes
        return {name: int(held(mask).max(initial=0)) for name, mask in masks.items()}

    @property
    def parameter_bytes(self) -> int:
        """The bytes of the rank's parameter shards."""
        return self.most_bytes["parameters"]

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients of the rank's shards."""
        return self.most_bytes["gradients"]

    @property
    def optimizer_bytes(self) -> int:
        """The bytes of the rank's optimizer state."""
        return self.most_bytes["optimizer state"]

    @property
    def activation_bytes(self) -> int:
        """The peak memory of activations that the forward pass keeps for the backward pass."""
        return self.most_bytes["activations"]

    @property
    def sent_bytes(self) -> int:
        """The bytes that the rank sends in one step, if collectives use ring algorithms."""
        return sum(row.sent_bytes for row in self.traffic)

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON."""
        return {
            "ranks": list(self.ranks),
            "peak_bytes": self.peak_bytes,
            "first_step_peak_bytes": self.estimate.first_step_peak_bytes,
            **self.estimate.reserved_to_dict(),
            "nvidia_smi_bytes": self.nvidia_smi_bytes,
            "peak": self.peak.to_dict(),
            "most_bytes": self.most_bytes,
            "elsewhere": self.estimate.elsewhere,
            "traffic": [row.to_dict() for row in self.traffic],
            "sent_bytes": self.sent_bytes,
            "bubble_seconds": self.bubble_seconds,
            "bubble_share": self.bubble_share,
        }
