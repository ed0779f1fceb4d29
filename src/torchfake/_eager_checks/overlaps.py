"""What eager refuses because of where elements lie: memory that is written more than once, or read,
or that has no room.

Input: a call that has no recipe yet. Output: nothing, or the error that eager would raise.
Invariant: what eager accepts is accepted; no generator of the program moves.

Kernels differ in what they look at: all inputs, some, or none (``fill_``). Most meta kernels do not
look, nor do those written in Python see that a result is larger than the tensor that it is written
to in place. So a call that may be refused is tried with the CPU kernel, on small real tensors that
share memory in the same way.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from torchfake._core import devices, memory
from torchfake._core.metadata import (
    Metadata,
    bytes_spanned,
    has_repeated_elements,
    intern,
    is_dense,
    metadata_of,
)
from torchfake._core.schemas import traits_of
from torchfake._eager_checks.small_calls import INTEGERS, TAKES_PIVOTS, Cut, cuts_for, run_small
from torchfake._operators.operator_call import Args, Call, Kwargs, mutated_tensors
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends

_REFUSALS = ("single memory location", "doesn't match the broadcast shape")
"""What messages of eager say that are about where the written elements lie."""


def check_overlaps(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise what eager raises if this call writes memory that repeats, or that it reads too."""
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
    """Whether what is written is read too, beside a tensor that would make it larger."""
    if not any(fake is arg for arg in call.args):
        return False
    return not all(_is_expandable(tensor.shape, fake.shape) for tensor in call.tensors)


def _is_expandable(size: torch.Size, other: torch.Size) -> bool:
    if len(size) > len(other):
        return False
    return all(n in (1, to) for n, to in zip(reversed(size), reversed(other), strict=False))


def _is_shared(written: list[FakeTensor], tensors: list[torch.Tensor]) -> bool:
    """Whether what is written is memory of another argument."""
    if len(tensors) < 2:
        return False
    by_storage: dict[int, list[FakeTensor]] = {}
    for tensor in tensors:
        if isinstance(tensor, FakeTensor):
            by_storage.setdefault(id(tensor._fake_storage), []).append(tensor)
    return any(len(by_storage[id(fake._fake_storage)]) > 1 for fake in written)


def _cuts_for(call: Call) -> list[Cut]:
    """How to make the tensors small: whole if nothing else is possible and that takes no time."""
    cuts = cuts_for(call)
    if not cuts and sum(t.numel() for t in call.tensors) <= _MAX_ELEMENTS:
        cuts = [Cut()]
    values = (1,) if call.traits.packet in TAKES_PIVOTS else (0, 1)  # of indices, and of pivots
    return [cut._replace(integer=value) for cut in cuts for value in values]


_MAX_ELEMENTS = 1 << 18


def _error_of(call: Call, cut: Cut) -> Exception | None:
    """What the kernel raises on small tensors that share memory as the arguments do."""
    small = _SmallTensors(call.tensors, cut)
    kwargs = {name: v for name, v in call.kwargs.items() if name not in ("pin_memory", "generator")}
    is_random = call.traits.is_random
    with backends.default_generator_kept() if is_random else nullcontext():
        try:
            run_small(call.func, small.of(call.args), small.of(kwargs))
        except Exception as error:
            return error.with_traceback(None)
    return None


class _SmallTensors:
    """Small real tensors in place of the arguments, one for each, that share memory as these do."""

    def __init__(self, tensors: list[torch.Tensor], cut: Cut) -> None:
        self.cut = cut
        self.made: dict[int, torch.Tensor] = {}
        groups: dict[int, dict[int, torch.Tensor]] = {}
        for tensor in tensors:
            owner = tensor._fake_storage if isinstance(tensor, FakeTensor) else tensor
            groups.setdefault(id(owner), {})[id(tensor)] = tensor
        for group in groups.values():
            self._make(list(group.values()))

    def of(self, value: Any) -> Any:
        """An argument with small tensors in it."""
        if isinstance(value, torch.Tensor):
            return self.made[id(value)]
        if isinstance(value, (list, tuple)):
            return [self.of(item) for item in value]
        if isinstance(value, dict):
            return {name: self.of(item) for name, item in value.items()}
        return devices.CPU if isinstance(value, torch.device) else value

    def _make(self, group: list[torch.Tensor]) -> None:
        """Make those that share one storage."""
        metas = [_metadata(tensor) for tensor in group]
        small = self._where_they_lie(metas) if self.cut.others is None else None
        small = small or self._much_as_they_lie(metas)
        slack = max(meta.num_bytes for meta in small)  # some kernels write as if it were contiguous
        storage = torch.UntypedStorage(max(map(_end, small)) + slack, device="cpu")
        views = [memory.view_of(storage, meta) for meta in small]
        for tensor, view in zip(group, views, strict=True):
            _fill(view, self.cut.integer)
            self.made[id(tensor)] = view

    def _where_they_lie(self, metas: list[Metadata]) -> list[Metadata] | None:
        """All of it, from the first element of any; None if that is much memory."""
        first = min(meta.offset * meta.dtype.itemsize for meta in metas)
        small = []
        for meta in metas:
            skipped, rest = divmod(first, meta.dtype.itemsize)
            if rest or _end(meta) - first > _MAX_SPAN_BYTES:
                return None
            small.append(_placed(meta, meta.size, meta.stride, meta.offset - skipped))
        return small

    def _much_as_they_lie(self, metas: list[Metadata]) -> list[Metadata]:
        """Of smaller sizes. What begins where the first does still does so; what overlaps with it
        is moved by an element; anything else comes behind it.
        """
        first, small = metas[0], []
        for meta in metas:
            size = self.cut.of(meta.size)
            small.append(_placed(meta, size, _strides_like(meta, size), 0))
        end = -(-_end(small[0]) // 16) * 16  # bytes: a multiple of every itemsize
        for i, meta in enumerate(metas):
            if _begin(meta) == _begin(first):
                offset = 0
            else:
                is_apart = _begin(meta) >= _end(first) or _begin(first) >= _end(meta)
                offset = end // meta.dtype.itemsize if is_apart else 1
            small[i] = _placed(small[i], small[i].size, small[i].stride, offset)
        return small


_MAX_SPAN_BYTES = 1 << 20


def _fill(view: torch.Tensor, integer: int) -> None:
    """Values that kernels accept: indices, and matrices that can be factorized."""
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


def _end(meta: Metadata) -> int:
    return bytes_spanned(meta.size, meta.stride, meta.offset, meta.dtype.itemsize)


def _strides_like(meta: Metadata, size: tuple[int, ...]) -> list[int]:
    """Strides of another size: the order of the dims, gaps and repetitions as in `meta`."""
    strides = [0] * len(size)
    step = 1 if is_dense(meta) or has_repeated_elements(meta.size, meta.stride) else 2
    for dim in sorted(range(len(size)), key=meta.stride.__getitem__):
        if meta.stride[dim] or meta.size[dim] == 1:
            strides[dim] = step
            step *= max(size[dim], 1)
    return strides
