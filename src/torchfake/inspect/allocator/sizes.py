"""The size of the block for a request, and of the segment that is allocated for it.

Input: a number of bytes, settings. Output: bytes. Invariant: sizes depend on the request and the
settings alone, not on which blocks are cached.
"""

from __future__ import annotations

from torchfake.inspect.allocator.settings import AllocatorSettings

MIN_BLOCK_BYTES = 512
"""All sizes are multiples of this: ``kMinBlockSize`` in c10/core/AllocatorConfig.h."""

SMALL_BYTES = 1 << 20
"""The largest request of the small pool: ``kSmallSize``."""

SMALL_SEGMENT_BYTES = 2 << 20
"""The size of segments of the small pool: ``kSmallBuffer``."""

MIN_LARGE_BYTES = 10 << 20
"""The smallest request that gets a segment of its own rounded size: ``kMinLargeAlloc``."""

LARGE_ROUNDING_BYTES = 2 << 20
"""The sizes of segments for large requests are multiples of this: ``kRoundLarge``."""


def rounded(num_bytes: int, settings: AllocatorSettings) -> int:
    """The size of the block for a request: ``round_size``.

    >>> rounded(1, AllocatorSettings()), rounded(513, AllocatorSettings())
    (512, 1024)
    """
    if num_bytes < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    divisions = settings.divisions(num_bytes)
    if divisions > 1 and num_bytes > MIN_BLOCK_BYTES * divisions:
        return _next_division(num_bytes, divisions)
    return -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def _next_division(num_bytes: int, divisions: int) -> int:
    """Round up to a multiple of the interval between powers of two, divided by `divisions`:
    ``roundup_power2_next_division``.
    """
    floor = 1 << (num_bytes.bit_length() - 1)
    part = floor // divisions
    return -(-num_bytes // part) * part


def segment_bytes(size: int, settings: AllocatorSettings) -> int:
    """The size of the segment allocated for a block of `size` bytes: ``get_allocation_size``."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIN_LARGE_BYTES:
        return settings.large_segment_bytes
    return -(-size // LARGE_ROUNDING_BYTES) * LARGE_ROUNDING_BYTES
