"""Draws of a few floats, which are done when their values are read.

Input: a call that draws, and the fake that it fills. Output: a :class:`LazyDraw`, the known
value of the storage. Invariant: draws are done in the order of the program, when the first value
after them is read.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch

from torchfake._core import modes
from torchfake._core.memory import view_of
from torchfake._core.metadata import Metadata, bytes_spanned
from torchfake._core.storage import SharedBytes
from torchfake._operators.operator_call import Args, Call, Kwargs
from torchfake._operators.random_values import (
    MAX_KNOWN_FLOATS,
    given_generator,
    lazy_generator_of,
)
from torchfake._random import lazy_generators, word_counts
from torchfake._random.lazy_generators import Fill, LazyGenerator
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatcher

aten = torch.ops.aten

_FILLS = {
    "aten::rand": aten.uniform_.default,
    "aten::rand_like": aten.uniform_.default,
    "aten::randn": aten.normal_.default,
    "aten::randn_like": aten.normal_.default,
    "aten::uniform_": aten.uniform_.default,
    "aten::normal_": aten.normal_.default,
    "aten::normal": aten.normal_.default,
    "aten::exponential_": aten.exponential_.default,
    "aten::cauchy_": aten.cauchy_.default,
    "aten::log_normal_": aten.log_normal_.default,
    "aten::geometric_": aten.geometric_.default,
    "aten::bernoulli_": aten.bernoulli_.float,
}
"""Draws that may be done later, as fills of memory: none reads the value of a tensor."""

_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
"""Dtypes for which the CPU has kernels of all these fills."""


class LazyDraw(SharedBytes):
    """The value of a draw, which is done when it is read, after those before it in the sequence."""

    __slots__ = ("__weakref__", "_lazy", "_num_bytes")

    is_draw = True

    def __init__(self, lazy: LazyGenerator, num_bytes: int) -> None:
        self.value = None
        self._lazy = lazy
        self._num_bytes = num_bytes

    def bytes(self) -> torch.UntypedStorage:
        if self.value is None:
            self._lazy.settle()
        assert self.value is not None
        return self.value

    @property
    def num_bytes(self) -> int:
        return self._num_bytes


def _filled(
    num_bytes: int, record: Metadata, fill: Any, args: Args, kwargs: Kwargs, generator: Any
) -> torch.UntypedStorage:
    with dispatcher.no_interception():
        made = torch.UntypedStorage(num_bytes, device="cpu")
        fill(view_of(made, record), *args, **kwargs, generator=generator)
    return made


def _numbers_drawn_with(call: Call) -> tuple[Any, ...] | None:
    """The positional arguments of the fill that does the draw; None if some are tensors."""
    if call.traits.mutated_names:
        return tuple(call.args[1:])
    if call.traits.packet != "aten::normal":
        return ()
    numbers = tuple(call.args[:2])  # mean and standard deviation; then the size
    return numbers if call.func is aten.normal.float_float else None


def draw_lazily(call: Call, fake: Any) -> bool:
    """Let the value of `fake`, a few floats that `call` has drawn, be drawn when it is read.

    Whether that is possible. A draw into a part of a storage whose value is unknown takes its place
    in the sequence and is lost.
    """
    fill = _FILLS.get(call.traits.packet)
    if fill is None or not isinstance(fake, FakeTensor) or not _is_small_draw(fake, call):
        return False
    is_in_place = bool(call.traits.mutated_names)
    storage, record = fake._fake_storage, fake._fake_meta
    is_whole = record.num_bytes == storage.num_bytes
    if is_in_place and not is_whole and storage.value is not None:
        return False  # done at once, in the bytes that are there
    numbers = _numbers_drawn_with(call)
    if numbers is None:
        return False
    options = {n: v for n, v in call.kwargs.items() if is_in_place and n != "generator"}
    size = storage.num_bytes if is_whole else _bytes_up_to_end(record)
    lazy, is_real = lazy_generator_of(given_generator((), call.kwargs), call.device)
    storage.value = drawn = LazyDraw(lazy, size) if is_whole else None
    _fill_later(drawn, lazy, record, fill, numbers, options, size)
    if is_real:
        lazy.settle()
    return True


def draw_whole_lazily(fill: Any, args: Args) -> bool:
    """:func:`draw_lazily` for the first argument of an operator that fills it, a plain fake on the
    CPU of few floats; or nothing has happened, if there is more to its storage.
    """
    storage, record = args[0]._fake_storage, args[0]._fake_meta
    size = record.num_bytes
    if storage.num_bytes != size or storage.deferred or modes.is_recording():
        return False
    if modes.is_in_recorded_initialiser():
        return False
    lazy = lazy_generators.position().lazy_generator()
    storage.value = drawn = LazyDraw(lazy, size)
    _fill_later(drawn, lazy, record, fill, args[1:], {}, size)
    return True


def _fill_later(
    drawn: LazyDraw | None, lazy: LazyGenerator, record: Metadata, fill: Any, *call: Any
) -> None:
    """Have a fill take its place in the sequence, for the value that gets its bytes, if one does.

    Args:
        drawn: that value.
        lazy: what the fill draws from.
        record: of the tensor that is filled.
        fill: the operator that fills it.
        *call: the arguments of that but for the tensor, the named ones, and the size in bytes.
    """
    numbers, options, size = call
    item = Fill(
        partial(_filled, size, record, fill, numbers, options),
        partial(word_counts.taken_by, fill, (None, *numbers), options, record),
    )
    if drawn is not None:
        item.reader = weakref.ref(drawn)  # before others may see the item: what nobody reads goes
    lazy.add(item)


def _is_small_draw(fake: FakeTensor, call: Call) -> bool:
    is_plain = fake.dtype in _DTYPES and not fake._fake_meta.zero
    overload_is_plain = not (call.traits.mutated_names and len(call.tensors) != 1)
    return is_plain and overload_is_plain and fake.numel() <= MAX_KNOWN_FLOATS


def _bytes_up_to_end(record: Metadata) -> int:
    return bytes_spanned(record.size, record.stride, record.offset, record.dtype.itemsize)
