"""Operations that can be done piece by piece, and doing them so.

Enters: operations. Leaves: steps, which give any stretch of elements its value without the rest.
Invariant: cut or not, the bits are the same. A draw is cut at multiples of 16 elements, where
torch's kernels begin anew; arithmetic anywhere, if this torch was seen to give equal bits.

A step looks at cells that have the same number of elements, each in order, and does to element i
what depends on elements i alone, or on place i of a generator's stream. So steps on the same
elements can be done one after the other on a piece that stays in a processor's cache, and what is
not wanted in the end is never there as a whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from torchfake import _private
from torchfake._graph import Cell, External, Op, Read
from torchfake._memory import real_device
from torchfake._metadata import Metadata, is_dense
from torchfake._ops import plan_of, with_generator
from torchfake._streams import Draw
from torchfake._words import SCALAR, draw_as, words_each

aten = torch.ops.aten

ALIGNED = SCALAR
"""Draws are cut at multiples of so many elements."""

Run = Callable[[list[torch.Tensor], "torch.Generator | None"], Any]


class View(NamedTuple):
    """All elements of a cell, as this dtype."""

    cell: Cell
    dtype: torch.dtype


class Step(NamedTuple):
    """An operation on elements `start` to `stop` of cells that have `length` of them."""

    op: Op
    length: int
    start: int
    stop: int
    views: tuple[View, ...]  # of the cells it looks at, as `run` takes them
    run: Run
    words: int  # that each element draws

    @property
    def draw(self) -> Draw | None:
        return self.op.draw  # type: ignore[no-any-return]

    def within(self, start: int, stop: int) -> tuple[int, int]:
        """The part of a stretch that this step works on; empty if the first is not less."""
        return max(start, self.start), min(stop, self.stop)


def step_of(op: Op) -> Step | None:
    """`op` as a step; None if it has to be done whole."""
    build = _BUILDERS.get(plan_of(op.func).name) if hasattr(op.func, "_schema") else None
    if build is None or op.kept is not None or op.refusal is not None:
        return None
    places = [(made.record, made.cell) for made in op.made]
    if build not in _FACTORIES:  # which look at no values
        reads = [(read.record, read.contents.cell) for read in op.args if type(read) is Read]
        places = [*reads, *places]
    if not places or not _are_alike(places) or not all(map(_is_simple, op.args)):
        return None
    record, cell = places[0]
    start, stop = record.offset, record.offset + math.prod(record.size)
    length = cell.num_bytes // record.dtype.itemsize
    run = build(op)
    if run is None or (op.draw is not None and not _can_be_cut(op, record, start, stop, length)):
        return None
    views = tuple(View(cell, record.dtype) for record, cell in places)
    words = 0 if op.draw is None else words_each(record.dtype)
    return Step(op, length, start, stop, views, run, words)


def is_factory(op: Op) -> bool:
    """Whether `op`, which is a step, looks at no values, and at most at the shape of a tensor."""
    return _BUILDERS.get(plan_of(op.func).name) in _FACTORIES


def _is_simple(arg: Any) -> bool:
    if type(arg) is External:
        return arg.tensor.dim() == 0 and arg.tensor.device.type == "cpu"
    return type(arg) not in (list, tuple) or not any(isinstance(i, (Read, External)) for i in arg)


def _are_alike(places: list[tuple[Metadata, Cell]]) -> bool:
    """Whether all lie in the same order in as large a memory, on the host."""
    (first, cell), *others = places
    length = _length_in_order(first, cell)
    if length is None or real_device(cell.device).type != "cpu":
        return False
    return all(
        _length_in_order(record, cell) == length
        and (record.size, record.offset) == (first.size, first.offset)
        and _strides(record) == _strides(first)
        and real_device(cell.device).type == "cpu"
        for record, cell in others
    )


def _length_in_order(record: Metadata, cell: Cell) -> int | None:
    """The elements of `cell`, if those of `record` are neighbours in it, each once."""
    if record.conj or record.neg or record.layout != torch.strided:
        return None
    if not cell.num_bytes or cell.num_bytes % record.dtype.itemsize:
        return None
    return cell.num_bytes // record.dtype.itemsize if is_dense(record) else None


def _strides(record: Metadata) -> list[tuple[int, int]]:
    pairs = zip(record.stride, record.size, strict=True)
    return [(stride, length) for stride, length in pairs if length != 1]


def _can_be_cut(op: Op, record: Metadata, start: int, stop: int, length: int) -> bool:
    """Whether pieces of a draw are those of the whole. What is behind the last multiple of 16 is
    drawn with the last piece, so it has to be at the end.
    """
    if op.draw.taken is None or op.draw.device.type != "cpu":
        return False
    if not record.is_in_order or start % ALIGNED:
        return False
    ends_well = stop == length or stop % ALIGNED == 0
    return ends_well and _is_cut_right(plan_of(op.func).packet, record.dtype)


@cache
def _is_cut_right(packet: str, dtype: torch.dtype) -> bool:
    """Whether this torch draws the same in pieces."""
    with _private.as_eager():
        whole, pieces = (torch.empty(105, dtype=dtype, device="cpu") for _ in range(2))
        for target, cuts in ((whole, [0, 105]), (pieces, [0, 16, 80, 105])):
            generator = torch.Generator(device="cpu")
            for start, stop in itertools.pairwise(cuts):
                draw_as(packet, target[start:stop], generator)
        return _same_bits(whole, pieces)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


# How each operator is done on slices.

_FACTORIES: set[Callable[[Op], Run | None]] = set()
"""Those that take at most the shape of a tensor."""


def _in_place(op: Op) -> Run | None:
    """Arithmetic that writes its first argument."""
    if op.made or not _is_exact(op):
        return None
    func, kwargs = op.func, op.kwargs
    return lambda slices, _: func(*_arguments(op, slices), **kwargs)


def _out_of_place(op: Op) -> Run | None:
    if len(op.made) != 1 or not _is_exact(op):
        return None
    func, kwargs = op.func, op.kwargs
    return lambda slices, _: slices[-1].copy_(func(*_arguments(op, slices), **kwargs))


def _arguments(op: Op, slices: list[torch.Tensor]) -> Iterator[Any]:
    given = iter(slices)
    for arg in op.args:
        yield next(given) if type(arg) is Read else arg.tensor if type(arg) is External else arg


def _copy(op: Op) -> Run | None:
    if type(op.args[0]) is not Read or not _converts_exactly(op.args[0].record, op.made[0].record):
        return None
    return lambda slices, _: slices[-1].copy_(slices[0])


def _copy_in_place(op: Op) -> Run | None:
    target, source = op.args[:2]
    if type(source) is not Read or not _converts_exactly(source.record, target.record):
        return None
    return lambda slices, _: slices[0].copy_(slices[1])


def _converts_exactly(source: Metadata, target: Metadata) -> bool:
    """Whether each element gets the same bits wherever it is: rounding does, but numbers that an
    integer cannot hold need not.
    """
    both_float = source.dtype.is_floating_point and target.dtype.is_floating_point
    return source.dtype == target.dtype or both_float


def _fill(op: Op) -> Run | None:
    value = op.args[1].tensor if type(op.args[1]) is External else op.args[1]
    return None if type(value) is Read else lambda slices, _: slices[0].fill_(value)


def _constant(place: int | None, value: Any = None) -> Callable[[Op], Run | None]:
    """Of a factory that fills with `value`, or with its argument at `place`."""

    def build(op: Op) -> Run | None:
        if place is not None and len(op.args) <= place:
            return None  # it was given by name
        filled = value if place is None else op.args[place]
        return lambda slices, _: slices[-1].fill_(filled)

    _FACTORIES.add(build)
    return build


def _zero_in_place(op: Op) -> Run | None:
    return lambda slices, _: slices[0].zero_()


def _draw_in_place(op: Op) -> Run | None:
    func, numbers = with_generator(op.func), op.args[1:]
    return lambda slices, generator: func(slices[0], *numbers, **op.kwargs, generator=generator)


def _draw_normal(op: Op) -> Run | None:
    return lambda slices, generator: slices[-1].normal_(generator=generator)


def _draw_uniform(op: Op) -> Run | None:
    return lambda slices, generator: slices[-1].uniform_(generator=generator)


_FACTORIES.update((_draw_normal, _draw_uniform))

_BUILDERS: dict[str, Callable[[Op], Run | None]] = {
    "aten.zero_.default": _zero_in_place,
    "aten.fill_.Scalar": _fill,
    "aten.fill_.Tensor": _fill,
    "aten.copy_.default": _copy_in_place,
    "aten.clone.default": _copy,
    "aten._to_copy.default": _copy,
    "aten.zeros.default": _constant(None, 0),
    "aten.zeros_like.default": _constant(None, 0),
    "aten.new_zeros.default": _constant(None, 0),
    "aten.ones.default": _constant(None, 1),
    "aten.ones_like.default": _constant(None, 1),
    "aten.new_ones.default": _constant(None, 1),
    "aten.full.default": _constant(1),
    "aten.full_like.default": _constant(1),
    "aten.new_full.default": _constant(2),
    "aten.uniform_.default": _draw_in_place,
    "aten.normal_.default": _draw_in_place,
    "aten.rand.default": _draw_uniform,
    "aten.rand_like.default": _draw_uniform,
    "aten.randn.default": _draw_normal,
    "aten.randn_like.default": _draw_normal,
    **dict.fromkeys(
        ("aten.mul_.Tensor", "aten.mul_.Scalar", "aten.add_.Tensor", "aten.add_.Scalar",
         "aten.sub_.Tensor", "aten.sub_.Scalar", "aten.div_.Tensor", "aten.div_.Scalar",
         "aten.neg_.default", "aten.abs_.default", "aten.clamp_.default",
         "aten.clamp_min_.default", "aten.clamp_max_.default", "aten.erfinv_.default",
         "aten.exp_.default", "aten.log_.default", "aten.sqrt_.default", "aten.tanh_.default"),
        _in_place,
    ),
    **dict.fromkeys(
        ("aten.mul.Tensor", "aten.mul.Scalar", "aten.add.Tensor", "aten.add.Scalar",
         "aten.sub.Tensor", "aten.sub.Scalar", "aten.rsub.Scalar", "aten.div.Tensor",
         "aten.div.Scalar", "aten.neg.default", "aten.abs.default", "aten.clamp.default",
         "aten.clamp_min.default", "aten.clamp_max.default", "aten.erfinv.default",
         "aten.exp.default", "aten.log.default", "aten.sqrt.default", "aten.tanh.default"),
        _out_of_place,
    ),
}  # fmt: skip


def _is_exact(op: Op) -> bool:
    """Whether this torch gives equal bits for pieces: a vector's kernel may round otherwise than
    the one for the elements that are left over.
    """
    records = [arg.record for arg in op.args if type(arg) is Read]
    dtypes = tuple(record.dtype for record in records)
    if not all(dtype.is_floating_point and dtype.itemsize > 1 for dtype in dtypes):
        return False  # with integers the default dtype may take part
    if any(type(arg) is External for arg in op.args):
        return False
    others = tuple("slice" if type(arg) is Read else arg for arg in op.args)
    try:
        return _was_seen_exact(op.func, dtypes, others, tuple(op.kwargs.items()))
    except TypeError:  # something that cannot be looked up
        return False


@lru_cache(maxsize=1024)
def _was_seen_exact(func: Any, dtypes: Any, args: Any, kwargs: Any) -> bool:
    samples = [_sample(dtype, seed) for seed, dtype in enumerate(dtypes)]

    def done(start: int, stop: int) -> torch.Tensor:
        given = iter([sample[start:stop].clone() for sample in samples])
        result = func(*(next(given) if arg == "slice" else arg for arg in args), **dict(kwargs))
        return result  # type: ignore[no-any-return]

    with _private.as_eager():
        length = len(samples[0])
        cuts = [0, 1, 16, 23, 1040, length - 3, length]
        pieces = [done(*cut) for cut in itertools.pairwise(cuts)]
        return _same_bits(done(0, length), torch.cat(pieces))


def _sample(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    with _private.as_eager():
        return torch.empty(4099, dtype=dtype, device="cpu").uniform_(-1, 1, generator=generator)
