"""The device under the allocator: how many of its bytes are taken, and which addresses are next.

Input: requests for segments, pages and ranges of addresses. Output: addresses. Invariant: never
more is taken than the capacity; no address is given twice.

``cudaMalloc`` promises nothing of addresses. They decide between free blocks of equal size alone,
and a driver that has room hands out ascending ones, as this does.
"""

from __future__ import annotations

ADDRESS_STEP = 2 << 20
"""Addresses are multiples of it: a page of the GPU."""

FIRST_ADDRESS = 0x7F0000000000
"""A round address where drivers place segments."""


class DeviceMemory:
    """The memory of one device.

    Args:
        capacity_bytes: what there is for the allocator; None: as much as is asked for.
        total_bytes: what the device has in all, from which the sizes of address ranges and of the
            allowed share follow; the capacity, if not given.
    """

    def __init__(self, capacity_bytes: int | None = None, total_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.total_bytes = total_bytes or capacity_bytes or 1 << 40
        self.taken_bytes = 0
        self._next_address = FIRST_ADDRESS

    def take(self, num_bytes: int) -> bool:
        """Take physical memory, if there is enough."""
        if self.capacity_bytes is not None and self.taken_bytes + num_bytes > self.capacity_bytes:
            return False
        self.taken_bytes += num_bytes
        return True

    def give_back(self, num_bytes: int) -> None:
        """Give physical memory back."""
        self.taken_bytes -= num_bytes

    def new_addresses(self, num_bytes: int) -> int:
        """The first address of a range that was not used before."""
        address = self._next_address
        self._next_address += -(-num_bytes // ADDRESS_STEP) * ADDRESS_STEP
        return address
