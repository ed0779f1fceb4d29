"""The bytes that one call of an operator reads and writes.

Input: an operator, its arguments and its result, which are fakes. Output: bytes. Invariant: bytes
are those that a kernel moves if each element is written once and read once, or twice where it first
computes statistics over more elements than a processor holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchfake.inspect.arithmetic.call import Call
from torchfake.observe import FakeTensor, Metadata, metadata_of, storage_of, traits_of

_TAKES_ROWS = frozenset(
    f"aten::{name}" for name in ("embedding", "index_select", "gather", "index", "nll_loss_forward")
)
_WITHOUT_KERNELS = ("profiler", "c10d", "_c10d_functional")
_VIEWS = ("aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh")


_READS_TWICE = re.compile(r"batch_norm|group_norm|instance_norm")
"""Operators that compute statistics of channels, then read their inputs again."""


def _reads_twice(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a kernel computes statistics first. Batch norms in eval mode are given them."""
    return bool(_READS_TWICE.search(traits_of(func).packet)) and not is_given_statistics(
        func, args, kwargs
    )


def is_given_statistics(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call is that of a batch norm in eval mode, which only scales and shifts."""
    packet = traits_of(func).packet
    if "batch_norm" not in packet or not hasattr(func, "_schema"):
        return False
    call = Call(func, args, kwargs, None)
    names = [name for name in ("training", "train") if call.has(name)]
    return not call[names[0]] if names else "no_training" in packet or "elemt" in packet


class Memory(NamedTuple):
    """The metadata of the tensors that a call reads and writes."""

    packet: str  # of the operator: "aten::add"
    read: list[Metadata]
    written: list[Metadata]
    times_read: int = 1

    @property
    def num_bytes(self) -> int:
        """Bytes read and written."""
        read = self.times_read * sum(map(bytes_touched, self.read))
        return sum(map(bytes_touched, self.written)) + read

    @property
    def is_uniform(self) -> bool:
        """Whether all tensors have the same sizes, strides and dtype, single numbers aside: kernels
        then read and write whole vectors.
        """
        tensors = [each for each in (*self.read, *self.written) if math.prod(each.size) > 1]
        return len({(each.size, each.stride, each.dtype) for each in tensors}) <= 1

    @property
    def keeps_strides(self) -> bool:
        """Whether what is read has the strides of the result, if it has its sizes. A copy to
        another layout reads or writes single elements.
        """
        result = self.written[0]
        return all(each.stride == result.stride for each in self.read if each.size == result.size)

    @property
    def num_bytes_of_rows(self) -> int:
        """The same; of a table that rows are taken from, only these rows are read."""
        if self.packet not in _TAKES_ROWS:
            return self.num_bytes
        written = sum(map(bytes_touched, self.written))
        return 2 * written + sum(map(bytes_touched, self.read[1:]))


def launches_nothing(func: Any) -> bool:
    """Whether calls of an operator launch no kernel, such as views and uninitialized memory, or the
    operator is a collective, which is recorded as a message.
    """
    traits = traits_of(func)
    is_metadata = traits.is_metadata_only or traits.is_view or traits.returns_uninitialized
    is_other = traits.is_collective or getattr(func, "namespace", "") in _WITHOUT_KERNELS
    return is_metadata or is_other or traits.packet in _VIEWS


def bytes_touched(record: Metadata) -> int:
    """The bytes of a tensor; elements repeated by expanded dims are counted once."""
    sizes = [n for n, step in zip(record.size, record.stride, strict=True) if step != 0 or n == 0]
    return math.prod(sizes) * record.dtype.itemsize


def memory_of(func: Any, args: Any, kwargs: Any, result: Any) -> Memory:
    """What a call reads and writes."""
    traits = traits_of(func)
    if not hasattr(func, "_schema"):  # of an operator that calls functions
        return Memory(
            traits.packet, [*map(metadata_of, _fakes(args))], [*map(metadata_of, _fakes(result))]
        )
    read: list[Metadata] = []
    written: list[Metadata] = []
    mutated: set[int] = set()
    takes_metadata = traits.packet.endswith("_like") or "::new_" in traits.packet
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        fakes = list(_fakes(value))
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += map(metadata_of, fakes)
            mutated |= {id(storage_of(fake)) for fake in fakes}
            if (i == 0 and traits.overwrites_first) or argument.is_out:
                continue
        if not takes_metadata:
            read += map(metadata_of, fakes)
    written += [metadata_of(t) for t in _fakes(result) if id(storage_of(t)) not in mutated]
    return Memory(traits.packet, read, written, 1 + _reads_twice(func, args, kwargs))


def _fakes(value: Any) -> Iterator[FakeTensor]:
    if isinstance(value, FakeTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _fakes(item)
