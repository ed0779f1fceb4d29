"""Draws of a few floats, made when their values are read.

Input: a call that draws, and the fake that it fills. Output: a :class:`LazyDraw`, the known value
of the storage. Invariant: draws are made in the order of the program; reading a value makes all
draws that wait for the generator.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch

from torchfake._core import modes
from torchfake._core.memory import covers, view_of
from torchfake._core.metadata import Metadata
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
"""Draws that may be made later, and the fill that makes each. No fill reads a tensor's value."""

_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
"""Dtypes for which the CPU has kernels of all these fills."""


class LazyDraw(SharedBytes):
    """The value of a draw, made when it is read, after the draws that precede it in the program."""

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
    """The positional arguments of the fill that makes the draw; None if some are tensors."""
    if call.traits.mutated_names:
        return tuple(call.args[1:])
    if call.traits.packet != "aten::normal":
        return ()
    numbers = tuple(call.args[:2])  # mean and standard deviation; then the size
    return numbers if call.func is aten.normal.float_float else None


def draw_lazily(call: Call, fake: Any) -> bool:
    """Let the value of `fake`, a few floats that `call` draws, be drawn when it is read. Return
    whether that is possible. Numbers drawn into a part of a storage of unknown value are lost, but
    they advance the generator.
    """
    fill = _FILLS.get(call.traits.packet)
    if fill is None or not isinstance(fake, FakeTensor) or not _is_small_draw(fake, call):
        return False
    is_in_place = bool(call.traits.mutated_names)
    storage, record = fake._fake_storage, fake._fake_meta
    is_whole = covers(record, storage.num_bytes)
    if is_in_place and not is_whole and storage.value is not None:
        return False  # drawn at once, into the known bytes
    numbers = _numbers_drawn_with(call)
    if numbers is None:
        return False
    options = {n: v for n, v in call.kwargs.items() if is_in_place and n != "generator"}
    size = storage.num_bytes if is_whole else record.end_bytes
    lazy, is_real = lazy_generator_of(given_generator((), call.kwargs), call.device)
    storage.value = drawn = LazyDraw(lazy, size) if is_whole else None
    _fill_later(drawn, lazy, record, fill, numbers, options, size)
    if is_real:
        lazy.settle()
    return True


def draw_whole_lazily(fill: Any, args: Args) -> bool:
    """:func:`draw_lazily` for a fill of a plain fake of few floats on the CPU, the first argument.
    Return False, with no effect, if the fake does not cover its storage, or the fill is recorded or
    counted with others.
    """
    storage, record = args[0]._fake_storage, args[0]._fake_meta
    size = record.num_bytes
    if storage.num_bytes != size or storage.deferred or modes.is_recording():
        return False
    if modes.is_in_recorded_initializer() or modes.thread.skips_draws_as_one:
        return False
    lazy = lazy_generators.position().lazy_generator()
    storage.value = drawn = LazyDraw(lazy, size)
    _fill_later(drawn, lazy, record, fill, args[1:], {}, size)
    return True


def _fill_later(
    drawn: LazyDraw | None, lazy: LazyGenerator, record: Metadata, fill: Any, *call: Any
) -> None:
    """Add a fill to the draws that wait for a lazy generator.

    Args:
        drawn: the value that gets the bytes; None if the numbers are lost.
        lazy: the generator that the fill draws from.
        record: the metadata of the tensor that is filled.
        fill: the operator that fills the tensor.
        *call: the fill's other arguments, its keyword arguments, and the size in bytes.
    """
    numbers, options, size = call
    item = Fill(
        partial(_filled, size, record, fill, numbers, options),
        partial(word_counts.taken_by, fill, (None, *numbers), options, record),
    )
    if drawn is not None:
        item.reader = weakref.ref(drawn)  # before `add`: unread items may be discarded then
    lazy.add(item)


def _is_small_draw(fake: FakeTensor, call: Call) -> bool:
    is_plain = fake.dtype in _DTYPES and not fake._fake_meta.zero
    overload_is_plain = not (call.traits.mutated_names and len(call.tensors) != 1)
    return is_plain and overload_is_plain and fake.numel() <= MAX_KNOWN_FLOATS
