"""The words that a draw by any random operator takes from its generator, without drawing.

Input: a random operator, its arguments, and the metadata of the tensor that it fills. Output: a
pending draw for a lazy generator; None if the number of words depends on values, or can only be
found by drawing. Invariant: the returned draw moves a generator as eager's kernel does;
``_random/draw_sizes`` tests the counts against the installed torch.

``_random/draw_sizes`` counts draws that can be tiled. This file also counts all other draws, since
the state of the generator after a draw has to be known for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchfake._core.metadata import Metadata, contiguous_stride, intern
from torchfake._random import draw_sizes
from torchfake._random.lazy_generators import SingleNormals, Words

aten = torch.ops.aten

Taken = Words | SingleNormals | None

_NORMALS = frozenset({"aten::normal_", "aten::normal", "aten::randn", "aten::randn_like"})
_MAX_COUNTED = 16  # from this number of elements on, normal numbers are drawn in blocks


def taken_by(func: Any, args: Any, kwargs: Any, record: Metadata) -> Taken:
    """The generator words that `func` takes to fill a tensor with this metadata.

    Args:
        func: a random operator, which draws on the CPU.
        args: its positional arguments; tensors among them are only asked for shapes and dtypes.
        kwargs: its named arguments.
        record: metadata of the tensor that is filled, or of the first result.
    """
    named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
    named.update(kwargs)
    record = _as_drawn(record)
    if not math.prod(record.size) or _draws_nothing(func._schema.name, named):
        return Words(0)
    counted = _COUNTS.get(func._schema.name)
    if counted is not None:
        return counted({**named, "overload": func._schema.overload_name}, record)
    if func._schema.name in _NORMALS:
        return _normals(named, record)
    return _counted(func, args, record)


def _as_drawn(record: Metadata) -> Metadata:
    """The metadata of the numbers that are drawn: complex numbers as pairs, booleans as bytes."""
    size, stride, dtype = record.size, record.stride, record.dtype
    if dtype.is_complex:
        size, stride = (*size, 2), (*(2 * step for step in stride), 1)
        dtype = dtype.to_real()
    elif dtype == torch.bool:
        dtype = torch.uint8
    else:
        return record
    return intern(size, stride, 0, dtype, record.device)


def _draws_nothing(packet: str, named: dict[str, Any]) -> bool:
    if packet in ("aten::native_dropout", "aten::dropout", "aten::feature_dropout"):
        return not named.get("train", True) or (packet != "aten::native_dropout" and not named["p"])
    if packet.startswith("aten::rrelu"):
        return not named.get("training", False)
    if "attention" in packet:
        return not named.get("dropout_p", 0.0)
    return False


def _normals(named: dict[str, Any], record: Metadata) -> Taken:
    num_elements = math.prod(record.size)
    if num_elements < _MAX_COUNTED or not record.lies_in_order:
        return SingleNormals(num_elements)
    num_words = draw_sizes.num_words_of_normal(record)
    return None if num_words is None else Words(num_words)


def _bernoulli(named: dict[str, Any], record: Metadata) -> Taken:
    """Two words per element for a number `p` or a float64 tensor, one for any other tensor."""
    if named["overload"] in ("float", "p"):
        return _counted(aten.bernoulli_.float, (), record)
    tensor = named.get("p", named["self"])
    return Words(math.prod(record.size) * draw_sizes.num_words_per_element(tensor.dtype))


def _multinomial(named: dict[str, Any], record: Metadata) -> Taken:
    probabilities, num_samples = named["self"], named["num_samples"]
    if named.get("replacement", False) and num_samples != 1:
        return Words(2 * math.prod(record.size))
    size = tuple(probabilities.shape)
    filled = intern(size, contiguous_stride(size), 0, probabilities.dtype, record.device)
    return _counted(aten.exponential_.default, (), filled)


def _dropout(named: dict[str, Any], record: Metadata) -> Taken:
    mask = intern(record.size, record.stride, 0, torch.uint8, record.device)
    return _counted(aten.bernoulli_.float, (), mask)


def _counted(func: Any, args: Any, record: Metadata) -> Taken:
    num_words = draw_sizes.num_words_drawn(func, args, record)
    return None if num_words is None else Words(num_words)


_COUNTS: dict[str, Callable[[dict[str, Any], Metadata], Taken]] = {
    "aten::log_normal_": lambda _, record: SingleNormals(math.prod(record.size)),
    "aten::bernoulli": _bernoulli,
    "aten::bernoulli_": _bernoulli,
    "aten::multinomial": _multinomial,
    "aten::native_dropout": _dropout,
}
