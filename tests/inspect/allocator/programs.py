"""Programs of allocations and frees, and what an allocator does with each: for the model here, and
for torch's own in ``worker_torch_allocator``.

A program is a list of operations, drawn from a seed: ``("allocate", name, bytes, stream)``,
``("free", name)``, ``("record_stream", name, stream)``, ``("busy", yes)`` (whether other streams
have not finished yet) and ``("empty_cache",)``.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from torchfake.inspect.allocator.blocks import Block
from torchfake.inspect.allocator.caching_allocator import CachingAllocator, OutOfMemory
from torchfake.inspect.allocator.device_memory import FIRST_ADDRESS, DeviceMemory
from torchfake.inspect.allocator.settings import parse_settings

MIB = 1 << 20
Op = tuple[Any, ...]
State = tuple[int, int, int]
"""After an operation: the address it gave, less the first; -1 for out of memory; bytes reserved and
allocated.
"""


class Program(NamedTuple):
    """What is run, and where."""

    settings: str
    capacity_mib: int
    seed: int
    num_ops: int = 400
    held_mib: int = 600  # above which frees become more likely

    def ops(self) -> list[Op]:
        """Its operations."""
        rng = random.Random(self.seed)
        ops: list[Op] = []
        held: dict[int, int] = {}
        for name in range(self.num_ops):
            draw = rng.random()
            full = sum(held.values()) > self.held_mib * MIB
            if held and (draw < 0.7 if full else draw < 0.42):
                freed = rng.choice(list(held))
                del held[freed]
                ops.append(("free", freed))
            elif draw > 0.985:
                ops.append(("empty_cache",))
            elif draw > 0.95 and held:
                ops.append(("record_stream", rng.choice(list(held)), rng.randrange(3)))
            elif draw > 0.93:
                ops.append(("busy", rng.random() < 0.5))
            else:
                held[name] = _size(rng)
                ops.append(("allocate", name, held[name], rng.choice((0, 0, 0, 1, 2))))
        return ops


def _size(rng: random.Random) -> int:
    """Of all magnitudes, and often exactly at a threshold or beside it."""
    if rng.random() < 0.3:
        edge = rng.choice((512, 2**16, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 24 * MIB, 64 * MIB))
        return max(edge + rng.choice((-513, -512, -1, 0, 1, 512)), 1)
    return int(2 ** rng.uniform(3, 27))


class _Model(CachingAllocator):
    busy = False

    def streams_finished(self, block: Block) -> bool:
        return not self.busy


def run_model(program: Program, *, trace: bool = False) -> tuple[list[State], CachingAllocator]:
    """The states after all operations, and the model at the end."""
    memory = DeviceMemory(program.capacity_mib * MIB)
    model = _Model(parse_settings(program.settings), memory, trace=trace)
    blocks: dict[int, Block] = {}
    states: list[State] = []
    for op in program.ops():
        address = 0
        if op[0] == "allocate":
            try:
                block = blocks[op[1]] = model.allocate(op[2], op[3])
                address = block.address - FIRST_ADDRESS
            except OutOfMemory:
                address = -1
        elif op[0] == "free" and op[1] in blocks:
            model.free(blocks.pop(op[1]))
        elif op[0] == "record_stream" and op[1] in blocks:
            model.record_stream(blocks[op[1]], op[2])
        elif op[0] == "busy":
            model.busy = op[1]
        elif op[0] == "empty_cache":
            model.empty_cache()
        states.append((address, model.reserved_bytes, model.allocated_bytes))
    return states, model


SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,4:8,32:4,>:16]",
    "large_segment_size_mb:32",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    "garbage_collection_threshold:0.5",
    "per_process_memory_fraction:0.6,expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
)
"""Settings that the programs are run with."""

PROGRAMS = tuple(
    Program(settings, capacity, seed)
    for settings in SETTINGS
    for capacity in (4000, 640)
    for seed in range(3)
)
"""Those whose results on torch's own allocator are recorded in recorded.json."""
