"""Metadata records: all properties of a tensor except its data. A fake has one record.

Input: sizes, strides, dtypes, devices. Output: interned :class:`Metadata`. Invariant: equal records
are one object, unless the table of records was full, and cleared, in between. So identity may stand
for equality wherever taking equal records for different ones costs only time (the dispatch cache).

A record has a mark, which says whether operations on the tensor are recorded. Marks are part of the
record, so that keys of the dispatch cache differ for plain and deferred fakes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from torchfake._core import devices
from torchfake._core.modes import DEFERRED as DEFERRED
from torchfake._core.modes import DEFERRED_AS_META as DEFERRED_AS_META
from torchfake._core.modes import PLAIN as PLAIN
from torchfake._torch import zero_tensors

MARKS = (PLAIN, DEFERRED, DEFERRED_AS_META)

Ints = tuple[int, ...]


class Metadata:
    """The shape, strides, dtype, device and other properties of a tensor, without its data."""

    __slots__ = (
        "carrier",
        "conj",
        "device",
        "dtype",
        "layout",
        "neg",
        "offset",
        "size",
        "stride",
        "wrapper_args",
        "zero",
    )

    size: Ints
    stride: Ints
    offset: int  # in elements, as torch's storage_offset
    dtype: torch.dtype
    device: torch.device  # that a real tensor would be on
    mark = PLAIN
    carrier: torch.device  # the device of the fake's wrapper in C++
    layout: torch.layout
    conj: bool
    neg: bool
    zero: bool  # a zero tensor: see torchfake._torch.zero_tensors
    wrapper_args: tuple[Any, ...] | None  # of make_wrapper: set by torchfake._tensor.fake_tensor

    @property
    def reported_device(self) -> torch.device:
        """The device that the fake reports."""
        return self.device

    @property
    def num_bytes(self) -> int:
        """The size of the tensor in bytes: the number of elements times the size of one."""
        return math.prod(self.size) * self.dtype.itemsize

    @property
    def end_bytes(self) -> int:
        """Where the last element ends, in bytes from the start of the storage."""
        return bytes_spanned(self.size, self.stride, self.offset, self.dtype.itemsize)

    @property
    def differs_from_memory(self) -> bool:
        """Whether it is a conjugate or negative as a view, or zeros without memory."""
        return self.conj or self.neg or self.zero

    @property
    def is_contiguous(self) -> bool:
        """Whether the tensor has exactly the strides of a contiguous tensor."""
        return self.stride == contiguous_stride(self.size)

    @property
    def lies_in_order(self) -> bool:
        """Whether elements lie one after the other, as C++'s ``is_contiguous`` says: strides of
        dims of one element do not matter.
        """
        if 0 in self.size:
            return True
        whole = zip(self.size, self.stride, contiguous_stride(self.size), strict=True)
        return all(size == 1 or step == usual for size, step, usual in whole)

    def __repr__(self) -> str:
        return f"Metadata({self.dtype}{list(self.size)}, stride={self.stride}, {self.device})"


class _Deferred(Metadata):
    """The record of a fake whose operations are recorded; a class attribute needs no slot."""

    __slots__ = ()
    mark = DEFERRED


class _DeferredAsMeta(Metadata):
    __slots__ = ()
    mark = DEFERRED_AS_META

    @property
    def reported_device(self) -> torch.device:
        return devices.META


SPARSE_LAYOUTS = frozenset(
    {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
)
"""Layouts that no fake has: a sparse tensor stays real."""

_CLASSES = (Metadata, _Deferred, _DeferredAsMeta)
_MAX_INTERNED = 200_000
_interned: dict[tuple[Any, ...], Metadata] = {}


def intern(
    size: Ints,
    stride: Ints,
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
    layout: torch.layout = torch.strided,
    conj: bool = False,
    neg: bool = False,
    zero: bool = False,
    mark: int = PLAIN,
) -> Metadata:
    """The record with this metadata: one object for equal arguments."""
    key: tuple[Any, ...] = (size, stride, offset, dtype, device, layout, conj, neg, zero)
    if mark:
        key = (*key, mark)
    record = _interned.get(key)
    return record if record is not None else _new_record(key)


def _new_record(key: tuple[Any, ...]) -> Metadata:
    if len(_interned) >= _MAX_INTERNED:
        _interned.clear()  # tensors keep their records; these are not shared with new tensors
        _by_mark.clear()
    devices.check_dtype(key[3], key[4])
    record = _CLASSES[key[9] if len(key) > 9 else PLAIN]()
    (record.size, record.stride, record.offset, record.dtype) = key[:4]
    (record.device, record.layout, record.conj, record.neg, record.zero) = key[4:9]
    record.carrier = devices.carrier(record.device)
    record.wrapper_args = None
    return _interned.setdefault(key, record)


def with_mark(record: Metadata, mark: int) -> Metadata:
    """The metadata of `record` with another mark."""
    marked = _by_mark.get((record, mark))
    if marked is None:
        marked = intern(*_fields(record), mark)
        _by_mark[record, mark] = marked
    return marked


def is_equal(one: Metadata, other: Metadata) -> bool:
    """Whether two records are equal, even if the table of records was cleared between them."""
    return one is other or (one.mark == other.mark and _fields(one) == _fields(other))


_Fields = tuple[Ints, Ints, int, torch.dtype, torch.device, torch.layout, bool, bool, bool]


def _fields(record: Metadata) -> _Fields:
    place = record.size, record.stride, record.offset, record.dtype
    return (*place, record.device, record.layout, record.conj, record.neg, record.zero)


_by_mark: dict[tuple[Metadata, int], Metadata] = {}


def metadata_of(tensor: torch.Tensor, device: torch.device) -> Metadata:
    """The record of a real or meta tensor, as if it were on `device`."""
    return intern(
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.dtype,
        device,
        tensor.layout,
        tensor.is_conj(),
        tensor.is_neg(),
        zero_tensors.is_zero_tensor(tensor),
    )


def contiguous_stride(size: Ints) -> Ints:
    """The strides of a contiguous tensor of this size."""
    stride, step = [], 1
    for length in reversed(size):
        stride.append(step)
        step *= max(length, 1)
    return tuple(reversed(stride))


@lru_cache(maxsize=4096)
def is_dense(record: Metadata | Operand) -> bool:
    """Whether the elements fill a range of memory without overlap, in any dimension order."""
    step = 1
    for stride, length in sorted(zip(record.stride, record.size, strict=True)):
        if length != 1 and stride != step:
            return False
        step *= length
    return True


def has_repeated_elements(size: Ints, stride: Ints) -> bool:
    """Whether the elements along a dim share memory: kernels refuse to draw into such a tensor."""
    is_repeated = any(n > 1 and step == 0 for n, step in zip(size, stride, strict=True))
    return is_repeated and 0 not in size


def bytes_spanned(size: Any, stride: Any, offset: int, itemsize: int) -> int:
    """The bytes from the start of a storage to the last element of a view of this geometry."""
    if 0 in size:
        return 0
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    return int((last + 1) * itemsize)


# The strides of the results of elementwise operators, computed as TensorIterator does
# (aten/src/ATen/TensorIterator.cpp, torch 2.13), for dims of length one too. Most meta kernels of
# elementwise operators are written in Python and give other strides to dims of length one. These
# strides are visible: they decide which memory format a convolution takes its input to have.


class Operand(NamedTuple):
    """The geometry of a tensor argument; a number has no dims."""

    size: tuple[int, ...]
    stride: tuple[int, ...]


def operand_of(tensor: torch.Tensor) -> Operand:
    """The geometry of a tensor."""
    return Operand(tuple(tensor.shape), tensor.stride())


def strides_of_result(size: tuple[int, ...], operands: Sequence[Operand]) -> tuple[int, ...]:
    """The strides of an elementwise result of `size`, from the strides of the operands."""
    if all(operand.size == size for operand in operands):
        fast = _fast_strides(size, operands)
        if fast is not None:
            return fast
    strides = [_broadcast_strides(operand, size) for operand in operands]
    order = _order_of_dims(size, strides)
    if order == list(reversed(range(len(size)))):
        return contiguous_stride(size)
    return _strides_in_order(size, order)


def strides_preserved(operand: Operand) -> tuple[int, ...]:
    """The strides of ``empty_like`` with ``torch.preserve_format``: ``infer_dense_strides``."""
    if _is_dense(operand):
        return operand.stride
    return _strides_in_order(operand.size, _order_of_dims(operand.size, [list(operand.stride)]))


def _fast_strides(size: tuple[int, ...], operands: Sequence[Operand]) -> tuple[int, ...] | None:
    """``fast_set_up``: the strides if all operands have one of three layouts; else None."""
    if all(_is_packed(operand, _CONTIGUOUS) for operand in operands):
        return contiguous_stride(size)
    if len(size) == 4 and all(_is_packed(operand, _CHANNELS_LAST) for operand in operands):
        return _strides_in_order(size, _CHANNELS_LAST)
    first = operands[0].stride
    if all(_is_dense(operand) and operand.stride == first for operand in operands):
        return first
    return None


_CONTIGUOUS = None
_CHANNELS_LAST = [1, 3, 2, 0]


def _is_packed(operand: Operand, order: list[int] | None) -> bool:
    """Whether elements are packed without gaps, with the dims in `order`, fastest first."""
    if 0 in operand.size:
        return order is _CONTIGUOUS
    expected = 1
    for dim in reversed(range(len(operand.size))) if order is None else order:
        if operand.size[dim] != 1:
            if operand.stride[dim] != expected:
                return False
            expected *= operand.size[dim]
    return True


def _is_dense(operand: Operand) -> bool:
    """``is_non_overlapping_and_dense``."""
    return 0 in operand.size or is_dense(operand)


def _broadcast_strides(operand: Operand, size: tuple[int, ...]) -> list[int]:
    missing = len(size) - len(operand.size)
    found = [0] * missing
    for i, (length, stride) in enumerate(zip(operand.size, operand.stride, strict=True)):
        found.append(0 if length == 1 and size[missing + i] != 1 else stride)
    return found


def _order_of_dims(size: tuple[int, ...], strides: list[list[int]]) -> list[int]:
    """``reorder_dimensions``: the dims from the fastest to the slowest, by an insertion sort in
    which some comparisons are ambiguous.
    """
    order = list(reversed(range(len(size))))
    for i in range(1, len(size)):
        current = i
        for other in reversed(range(i)):
            comparison = _compare(order[other], order[current], size, strides)
            if comparison > 0:
                order[other], order[current] = order[current], order[other]
                current = other
            elif comparison < 0:
                break
    return order


def _compare(first: int, second: int, size: tuple[int, ...], strides: list[list[int]]) -> int:
    """Positive if dim `first` is slower than `second`, negative if faster, 0 if ambiguous."""
    for of_operand in strides:
        a, b = of_operand[first], of_operand[second]
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if size[first] > size[second]:
            return 1
    return 0


def _strides_in_order(size: tuple[int, ...], order: list[int]) -> tuple[int, ...]:
    strides = [0] * len(size)
    expected = 1
    for dim in order:
        strides[dim] = expected
        expected *= size[dim]
    return tuple(strides)
