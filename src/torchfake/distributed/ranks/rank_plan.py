"""The memory and communication of one rank, which stands for ranks with shards of equal sizes.

Input: the estimate of a rank's step, the roles of its storages, and its traffic. Output: a
:class:`RankPlan`, plain data. Invariant: the kinds of bytes that are held at the peak add up to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from torchfake.distributed.layout import Layout
from torchfake.distributed.ranks.rank_tracker import COMMUNICATION, UNSHARDED, Traffic
from torchfake.inspect.allocator.outside import COMMUNICATOR_BYTES
from torchfake.inspect.memory.estimate_record import Estimate, Peak
from torchfake.inspect.storages.lifetimes import CATEGORIES
from torchfake.inspect.timing.collectives import GPUS_PER_NODE, Links
from torchfake.inspect.timing.commands import Message
from torchfake.inspect.timing.efficiency import Shares
from torchfake.inspect.timing.hardware import Hardware
from torchfake.inspect.timing.machine import InNode
from torchfake.inspect.timing.schedule import Schedule, schedule_of

KINDS = (*CATEGORIES, UNSHARDED, COMMUNICATION)
"""What bytes of a rank are used for: the categories of an estimate, and two more. ``unsharded
parameters`` are those that FSDP has gathered; ``communication`` is the memory of messages that is
neither a parameter, a gradient nor an activation.
"""

SHOWN_ORDER = [
    KINDS.index(name)
    for name in (
        *("parameters", "gradients", "optimizer state", "activations", UNSHARDED, COMMUNICATION),
        *("temporaries", "buffers", "inputs"),
    )
]


def in_node_of(layout: Layout, links: Links | None) -> InNode:
    """The function that gives how many of the ranks of a message are in one node."""
    per_node = GPUS_PER_NODE if links is None else links.gpus_per_node

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
    traffic: tuple[Traffic, ...]  # what each of them sends
    estimate: Estimate = field(compare=False)  # of the step, as `estimate` gives it
    roles: np.ndarray[Any, Any] = field(compare=False)  # int8 [lifetimes of the estimate]
    joint_schedule: Schedule | None = field(default=None, compare=False)
    """Of ranks that send each other messages: with the others, for which it waits."""

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
        """The most memory that its caching allocator reserves; None on a CPU."""
        return self.estimate.peak_reserved_bytes

    @property
    def nvidia_smi_bytes(self) -> int | None:
        """The most that ``nvidia-smi`` would show: reserved memory, the CUDA context (512 MiB are
        assumed), and the buffers of NCCL (256 MiB for each process group).
        """
        shown = self.estimate.nvidia_smi_bytes
        groups = {(row.axis, row.group_size) for row in self.traffic}
        return None if shown is None else shown + len(groups) * COMMUNICATOR_BYTES

    @cached_property
    def peak(self) -> Peak:
        """The moment at which most is held; its categories are KINDS."""
        peak = self.estimate.peak
        return Peak(**{**peak.__dict__, "by_category": self._by_kind(peak)})

    @cached_property
    def kinds(self) -> np.ndarray[Any, Any]:
        """What each storage is used for, int8 [lifetimes of the estimate] into KINDS."""
        category = self.estimate.lives.category
        is_temporary = category == CATEGORIES.index("temporaries")
        is_of_forward = is_temporary | (category == CATEGORIES.index("activations"))
        kinds = np.where(is_of_forward & (self.roles == 1), KINDS.index(UNSHARDED), category)
        return np.where(is_temporary & (self.roles == 2), KINDS.index(COMMUNICATION), kinds)

    def _by_kind(self, peak: Peak) -> dict[str, int]:
        alive = self.estimate.alive_at(peak.event)
        sums = np.bincount(self.kinds[alive], self.estimate.sizes[alive], minlength=len(KINDS))
        found = {name: int(n) for name, n in zip(KINDS, sums, strict=True) if n}
        if self.estimate.workspace_bytes:
            found["workspace"] = self.estimate.workspace_bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @cached_property
    def most_bytes(self) -> dict[str, int]:
        """The most that is held of each kind at any moment. Each kind has a moment of its own, so
        these do not add up to the peak.
        """
        most = (self.estimate.held_bytes(self.kinds == i).max(initial=0) for i in SHOWN_ORDER)
        return {KINDS[i]: int(n) for i, n in zip(SHOWN_ORDER, most, strict=True)}

    @property
    def parameter_bytes(self) -> int:
        """The bytes of its parameter shards."""
        return self.most_bytes["parameters"]

    @property
    def gradient_bytes(self) -> int:
        """The bytes of the gradients of its shards."""
        return self.most_bytes["gradients"]

    @property
    def optimizer_bytes(self) -> int:
        """The bytes of its optimizer state."""
        return self.most_bytes["optimizer state"]

    @property
    def activation_bytes(self) -> int:
        """The peak memory of activations that the forward pass keeps for the backward pass."""
        return self.most_bytes["activations"]

    @property
    def sent_bytes(self) -> int:
        """The bytes that it sends in one step, if collectives use ring algorithms."""
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
