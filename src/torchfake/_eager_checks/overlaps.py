"""Writes that eager refuses because of where elements lie: to memory that repeats, that another
argument reads, or that is too small.

Input: a call that has no recipe yet. Output: nothing, or the error that eager would raise.
Invariant: a call that eager accepts is accepted; no generator of the program moves.

Kernels differ in the inputs that they check: all, some, or none (``fill_``). Most meta kernels
check none, and those written in Python miss results larger than the tensor written in place. So a
call that may be refused is run with the CPU kernel, on small real tensors that share memory alike.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch

from torchfake._core import devices, memory
from torchfake._core.metadata import (
    Metadata,
    has_repeated_elements,
    intern,
    is_dense,
    metadata_of,
)
from torchfake._core.schemas import traits_of
from torchfake._eager_checks.small_calls import (
    INTEGERS,
    TAKES_PIVOTS,
    Cut,
    error_raised,
    num_elements_on_meta,
    run_small,
)
from torchfake._operators.operator_call import Args, Call, Kwargs, mutated_tensors, tensors_in
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends
from torchfake._torch.cpp_metadata import has_structured_overload

_REFUSALS = ("single memory location", "doesn't match the broadcast shape")
"""Parts of eager's messages that are about where the written elements lie."""


def check_overlaps(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise eager's error if the call writes memory that repeats, or that the call also reads."""
    traits = traits_of(func)
    if not traits.mutated_names or func.namespace != "aten":
        return
    call = Call(func, args, kwargs)
    written = [t for t in mutated_tensors(call) if isinstance(t, FakeTensor)]
    if not written or not (
        any(map(_repeats, written))
        or _is_shared(written, call.tensors)
        or (not traits.is_foreach and _is_broadcast(written[0], call))
    ):
        return
    for cut in _cuts_for(call):
        error = _error_of(call, cut)
        if error is None:
            return
        if any(text in str(error) for text in _REFUSALS):
            raise error


def _repeats(fake: FakeTensor) -> bool:
    return has_repeated_elements(fake._fake_meta.size, fake._fake_meta.stride)


def _is_broadcast(fake: FakeTensor, call: Call) -> bool:
    """Whether `fake`, written in place, would have to grow to the shape of another argument."""
    if not any(fake is arg for arg in call.args):
        return False
    return not all(_is_expandable(tensor.shape, fake.shape) for tensor in call.tensors)


def _is_expandable(size: torch.Size, other: torch.Size) -> bool:
    if len(size) > len(other):
        return False
    return all(n in (1, to) for n, to in zip(reversed(size), reversed(other), strict=False))


def _is_shared(written: list[FakeTensor], tensors: list[torch.Tensor]) -> bool:
    """Whether a written tensor shares its storage with another argument."""
    if len(tensors) < 2:
        return False
    by_storage: dict[int, list[FakeTensor]] = {}
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            by_storage.setdefault(id(tensor._fake_storage), []).append(tensor)
    return any(len(by_storage[id(fake._fake_storage)]) > 1 for fake in written)


def _cuts_for(call: Call) -> list[Cut]:
    """The ways to make the tensors small: not at all unless they are large. There is none if a
    kernel may be run on sizes that do not agree: see ``small_calls``. Kernels that look at each
    element alone, or choose elements, broadcast the sizes first, so they may.
    """
    are_inputs_empty = any(t.numel() == 0 for t in tensors_in(call.args, {}))
    if are_inputs_empty and not has_structured_overload(call.func):
        return []  # some kernels divide by the number of elements, which ends the process
    is_large = sum(t.numel() for t in call.tensors) > _MAX_ELEMENTS
    cut = Cut(others=3, last=3) if is_large else Cut()
    if not _BROADCASTING.intersection(call.func.tags) and num_elements_on_meta(call, cut) is None:
        return []
    values = (1,) if call.traits.packet in TAKES_PIVOTS else (0, 1)  # values of integers
    return [cut._replace(integer=value) for value in values]


_BROADCASTING = frozenset({torch.Tag.pointwise, torch.Tag.dynamic_output_shape})
_MAX_ELEMENTS = 1 << 18


def _error_of(call: Call, cut: Cut) -> Exception | None:
    """The kernel's error on small tensors that share memory as the arguments do, or None."""
    small = _SmallTensors(call.tensors, cut)
    kwargs = {name: v for name, v in call.kwargs.items() if name not in ("pin_memory", "generator")}
    is_random = call.traits.is_random
    with backends.default_generator_kept() if is_random else nullcontext():
        return error_raised(lambda: run_small(call.func, small.of(call.args), small.of(kwargs)))


class _SmallTensors:
    """Small real tensors in place of the arguments, which share memory as the arguments do."""

    def __init__(self, tensors: list[torch.Tensor], cut: Cut) -> None:
        self.cut = cut
        self.made: dict[int, torch.Tensor] = {}
        sizes = [math.prod(cut.of(t.size())) * t.dtype.itemsize for t in tensors]
        self.slack = max(sizes)  # bytes: kernels write as if contiguous, and as much as they read
        groups: dict[int, dict[int, torch.Tensor]] = {}
        for tensor in tensors:
            owner = tensor._fake_storage if isinstance(tensor, FakeTensor) else tensor
            groups.setdefault(id(owner), {})[id(tensor)] = tensor
        for group in groups.values():
            self._make(list(group.values()))

    def of(self, value: Any) -> Any:
        """The argument `value`, with small tensors in place of its own."""
        if isinstance(value, torch.Tensor):
            return self.made[id(value)]
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        if isinstance(value, dict):
            return {name: self.of(item) for name, item in value.items()}
        return devices.CPU if isinstance(value, torch.device) else value

    def _make(self, group: list[torch.Tensor]) -> None:
        """Make the small tensors for `group`, which share one storage."""
        metas = [_metadata(tensor) for tensor in group]
        small = self._where_they_lie(metas) if self.cut.others is None else None
        small = small or self._much_as_they_lie(metas)
        storage = torch.UntypedStorage(
            max(meta.end_bytes for meta in small) + self.slack, device="cpu"
        )
        views = [memory.view_of(storage, meta) for meta in small]
        for tensor, view in zip(group, views, strict=True):
            _fill(view, self.cut.integer)
            self.made[id(tensor)] = view

    def _where_they_lie(self, metas: list[Metadata]) -> list[Metadata] | None:
        """Place the tensors unchanged, from the first byte of any; None if that is much memory."""
        first = min(meta.offset * meta.dtype.itemsize for meta in metas)
        small = []
        for meta in metas:
            skipped, rest = divmod(first, meta.dtype.itemsize)
            if rest or meta.end_bytes - first > _MAX_SPAN_BYTES:
                return None
            small.append(_placed(meta, meta.size, meta.stride, meta.offset - skipped))
        return small

    def _much_as_they_lie(self, metas: list[Metadata]) -> list[Metadata]:
        """Place tensors of smaller sizes. Those that begin where the first does still do so; those
        that overlap with the first are moved by an element; others come behind it.
        """
        first, small = metas[0], []
        for meta in metas:
            size = self.cut.of(meta.size)
            small.append(_placed(meta, size, _strides_like(meta, size), 0))
        end = -(-small[0].end_bytes // 16) * 16  # bytes: a multiple of every itemsize
        for i, meta in enumerate(metas):
            if _begin(meta) == _begin(first):
                offset = 0
            else:
                is_apart = _begin(meta) >= first.end_bytes or _begin(first) >= meta.end_bytes
                offset = end // meta.dtype.itemsize if is_apart else 1
            small[i] = _placed(small[i], small[i].size, small[i].stride, offset)
        return small


_MAX_SPAN_BYTES = 1 << 20


def _fill(view: torch.Tensor, integer: int) -> None:
    """Fill with values that kernels accept: as indices, and as matrices to be factorized."""
    view.fill_(integer if view.dtype in INTEGERS else 1)
    if view.dtype.is_floating_point and view.dim() > 1:
        view.diagonal(0, -2, -1).fill_(view.shape[-1] + 1)


def _metadata(tensor: torch.Tensor) -> Metadata:
    if isinstance(tensor, FakeTensor):
        return tensor._fake_meta
    return metadata_of(tensor, devices.CPU)


def _placed(meta: Metadata, size: Any, stride: Any, offset: int) -> Metadata:
    place = tuple(size), tuple(stride), offset, meta.dtype
    return intern(*place, devices.CPU, meta.layout, meta.conj, meta.neg, meta.zero)


def _begin(meta: Metadata) -> int:
    return meta.offset * meta.dtype.itemsize


def _strides_like(meta: Metadata, size: tuple[int, ...]) -> list[int]:
    """Strides for `size` with the order of dims, the gaps and the repetitions of `meta`."""
    strides = [0] * len(size)
    step = 1 if is_dense(meta) or has_repeated_elements(meta.size, meta.stride) else 2
    for dim in sorted(range(len(size)), key=meta.stride.__getitem__):
        if meta.stride[dim] or meta.size[dim] == 1:
            strides[dim] = step
            step *= max(size[dim], 1)
    return strides
