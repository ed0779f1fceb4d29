"""How each tileable operator is computed on a tile.

Input: a recorded operation. Output: a kernel, which computes the operation on slices of its
operands; None if its arguments do not allow that. Invariant: an operator is computed by tiles only
if its results have the same bits. For draws and arithmetic, the installed torch is tested once for
each operator, dtype and arguments; for copies, no conversion may depend on an element's index.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import torch

from torchfake._core.metadata import Metadata
from torchfake._core.schemas import overload_with_generator, traits_of
from torchfake._graph.externals import External
from torchfake._graph.operations import Op, Read
from torchfake._random.draw_sizes import sample_as
from torchfake._torch import dispatcher

Kernel = Callable[[list[torch.Tensor], "torch.Generator | None"], Any]
"""Computes an operation on slices of its operands, with draws from the generator."""

Builder = Callable[[Op], Kernel | None]


def builder_of(op: Op) -> Builder | None:
    """The function that builds the operator's tile kernel; None if the operator cannot be tiled."""
    return _BUILDERS.get(traits_of(op.func).name) if hasattr(op.func, "_schema") else None


def builds_factory(build: Builder | None) -> bool:
    """Whether the kernels that `build` builds read at most the shape of a tensor."""
    return build in _FACTORIES


_FACTORIES: set[Builder | None] = set()


def _in_place(op: Op) -> Kernel | None:
    """Arithmetic that writes its first argument."""
    if op.outputs or not _is_exact(op):
        return None
    func, kwargs = op.func, op.kwargs
    return lambda slices, _: func(*_arguments(op, slices), **kwargs)


def _out_of_place(op: Op) -> Kernel | None:
    if len(op.outputs) != 1 or not _is_exact(op):
        return None
    func, kwargs = op.func, op.kwargs
    return lambda slices, _: slices[-1].copy_(func(*_arguments(op, slices), **kwargs))


def _arguments(op: Op, slices: list[torch.Tensor]) -> Iterator[Any]:
    remaining = iter(slices)
    for arg in op.args:
        yield next(remaining) if type(arg) is Read else arg.tensor if type(arg) is External else arg


def _copy(op: Op) -> Kernel | None:
    source, target = op.args[0], op.outputs[0]
    if type(source) is not Read or not _converts_exactly(source.record, target.record):
        return None
    return lambda slices, _: slices[-1].copy_(slices[0])


def _copy_in_place(op: Op) -> Kernel | None:
    target, source = op.args[:2]
    if type(source) is not Read or not _converts_exactly(source.record, target.record):
        return None
    return lambda slices, _: slices[0].copy_(slices[1])


def _converts_exactly(source: Metadata, target: Metadata) -> bool:
    """Whether a conversion gives an element the same bits at any index. Rounding between floating
    dtypes does; the result for a number that an integer cannot hold may depend on the index.
    """
    both_float = source.dtype.is_floating_point and target.dtype.is_floating_point
    return source.dtype == target.dtype or both_float


def _fill(op: Op) -> Kernel | None:
    value = op.args[1].tensor if type(op.args[1]) is External else op.args[1]
    return None if type(value) is Read else lambda slices, _: slices[0].fill_(value)


def _constant(index: int | None, value: Any = None) -> Builder:
    """The builder of a factory that fills with `value`, or with its argument at `index`."""

    def build(op: Op) -> Kernel | None:
        if index is not None and len(op.args) <= index:
            return None  # it was passed by keyword
        constant = value if index is None else op.args[index]
        return lambda slices, _: slices[-1].fill_(constant)

    _FACTORIES.add(build)
    return build


def _zero_in_place(op: Op) -> Kernel | None:
    return lambda slices, _: slices[0].zero_()


def _draw_in_place(op: Op) -> Kernel | None:
    func, bounds = overload_with_generator(op.func), op.args[1:]
    return lambda slices, generator: func(slices[0], *bounds, **op.kwargs, generator=generator)


def _draw_normal(op: Op) -> Kernel | None:
    return lambda slices, generator: slices[-1].normal_(generator=generator)


def _draw_uniform(op: Op) -> Kernel | None:
    return lambda slices, generator: slices[-1].uniform_(generator=generator)


_FACTORIES.update((_draw_normal, _draw_uniform))

_BUILDERS: dict[str, Builder] = {
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


# Tests of the installed torch: whether tiles have the bits of the whole.


@cache
def tiled_draws_match(packet: str, dtype: torch.dtype) -> bool:
    """Whether the installed torch draws the same numbers tile by tile."""
    with dispatcher.as_eager():
        whole, tiled = (torch.empty(105, dtype=dtype, device="cpu") for _ in range(2))
        for target, edges in ((whole, [0, 105]), (tiled, [0, 16, 80, 105])):
            generator = torch.Generator(device="cpu")
            for start, stop in itertools.pairwise(edges):
                sample_as(packet, target[start:stop], generator)
        return _same_bits(whole, tiled)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def _is_exact(op: Op) -> bool:
    """Whether the installed torch gives equal bits for tiles: a vectorised kernel may round
    differently from the scalar one that computes the remaining elements.
    """
    records = [arg.record for arg in op.args if type(arg) is Read]
    dtypes = tuple(record.dtype for record in records)
    if not all(dtype.is_floating_point and dtype.itemsize > 1 for dtype in dtypes):
        return False  # results for integers may depend on the default dtype
    if any(type(arg) is External for arg in op.args):
        return False
    others = tuple(_TENSOR if type(arg) is Read else arg for arg in op.args)
    try:
        return tiled_arithmetic_matches(op.func, dtypes, others, tuple(op.kwargs.items()))
    except TypeError:  # an argument that has no hash
        return False


_TENSOR = "tensor"
"""Stands for a tensor among the arguments."""


@lru_cache(maxsize=1024)
def tiled_arithmetic_matches(func: Any, dtypes: Any, args: Any, kwargs: Any) -> bool:
    """Whether `func` gives the same bits for a sample and for tiles of it."""
    samples = [_sample(dtype, seed) for seed, dtype in enumerate(dtypes)]

    def compute(start: int, stop: int) -> torch.Tensor:
        slices = iter([sample[start:stop].clone() for sample in samples])
        result = func(*(next(slices) if arg == _TENSOR else arg for arg in args), **dict(kwargs))
        return result  # type: ignore[no-any-return]

    with dispatcher.as_eager():
        length = len(samples[0])
        edges = [0, 1, 16, 23, 1040, length - 3, length]
        tiles = [compute(*edge) for edge in itertools.pairwise(edges)]
        return _same_bits(compute(0, length), torch.cat(tiles))


def _sample(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    with dispatcher.as_eager():
        return torch.empty(4099, dtype=dtype, device="cpu").uniform_(-1, 1, generator=generator)
