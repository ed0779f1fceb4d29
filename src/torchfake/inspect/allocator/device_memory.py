"""The memory of a device: how many bytes are taken, and which addresses are next.

Input: requests for segments, pages and address ranges. Output: addresses. Invariant: never more is
taken than the capacity; no address is used twice.

``cudaMalloc`` guarantees no order of addresses. The allocator uses addresses only to choose between
free blocks of equal size. They ascend here, as with a driver that has enough room.
"""

from __future__ import annotations

ADDRESS_STEP = 2 << 20
"""Addresses are multiples of this size, a page of the GPU."""

FIRST_ADDRESS = 0x7F0000000000
"""The first address, a round one in the range that drivers use."""


class DeviceMemory:
    """The memory of one device.

    Args:
        capacity_bytes: the memory that the allocator can get; None: unlimited.
        total_bytes: the memory of the device, which determines the sizes of address ranges and of
            the allowed share; by default the capacity.
    """

    def __init__(self, capacity_bytes: int | None = None, total_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.total_bytes = total_bytes or capacity_bytes or 1 << 40
        self.taken_bytes = 0
        self._next_address = FIRST_ADDRESS

    def take(self, num_bytes: int) -> bool:
        """Take physical memory; False if there is not enough."""
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
