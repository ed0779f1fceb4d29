"""Torch's databases of operators and modules, as calls of functions of tensors.

Input: the name of an operator or a module, a dtype, an arrangement. Output: its calls in this
arrangement. Invariant: a tensor that a call has twice stays one tensor; no call is given twice.
"""

from __future__ import annotations

import itertools
import operator
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_map

from tests.strides.arrangements import LAYOUTS, SIZES

OPERATORS = {
    f"{op.name}.{op.variant_test_name}".rstrip("."): op
    for op in op_db
    if op.supported_dtypes("cpu")
}
OPERATORS["__getitem__"].op = operator.getitem  # a method of the class cannot be intercepted
MODULES = {info.name: info for info in module_db}
NAMES = [*OPERATORS, *MODULES]


class Case(NamedTuple):
    """One call: of an operator, or of a module that is made first."""

    name: str
    index: int  # of the sample
    size: str
    layout: str
    make: Callable[[], Callable[..., Any]]  # the function to call, made anew
    arguments: tuple[Any, dict[str, Any]]

    @property
    def label(self) -> str:
        return f"{self.index}, {self.size}, {self.layout}"


def dtype_of(name: str) -> torch.dtype:
    """The dtype of the samples, unless the operator has no such kernel."""
    if name in MODULES:
        return torch.float32
    supported = OPERATORS[name].supported_dtypes("cpu")
    return next(t for t in (torch.float32, torch.int64, *supported) if t in supported)


def cases_of(name: str, limit: int | None, step: int = 1) -> Iterator[Case]:
    """The calls of an operator or module in each arrangement, or one in `step` of them, which are
    others for another name; at most `limit` samples in each.
    """
    seen: set[Any] = set()
    dtype = dtype_of(name)
    arrangements = list(itertools.product(SIZES, LAYOUTS))
    for size, layout in arrangements[zlib.crc32(name.encode()) % step :: step]:
        found = 0
        for index, make, arguments in samples_of(name, dtype):
            if limit is not None and found >= limit:
                break
            arranged = _arranged(arguments, size, layout)
            signature = index, _key(arranged)
            if signature in seen or not is_strided(arranged):
                continue
            seen.add(signature)
            found += 1
            yield Case(name, index, size, layout, make, arranged)


Sample = tuple[int, Callable[[], Callable[..., Any]], tuple[Any, dict[str, Any]]]
_kept: dict[Any, list[Sample]] = {}


def samples_of(name: str, dtype: torch.dtype) -> list[Sample]:
    """The samples, in an order that depends on the name alone; those of one name are kept."""
    if (name, dtype) not in _kept:
        _kept.clear()
        torch.manual_seed(0)
        made = _of_operator(name, dtype) if name in OPERATORS else _of_module(name, dtype)
        samples = sorted(made, key=lambda s: zlib.crc32(f"{name} {s[0]}".encode()))
        _kept[name, dtype] = samples
    return _kept[name, dtype]


def _of_operator(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    op = OPERATORS[name]
    backward = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for index, sample in enumerate(op.sample_inputs_func(op, "cpu", dtype, backward)):
        arguments = (sample.input, *sample.args), dict(sample.kwargs)
        yield index, lambda: op.op, arguments


def _of_module(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    info = MODULES[name]
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=True
    )
    for index, each in enumerate(inputs):
        if each.forward_input is None:
            continue
        made, given = each.constructor_input, each.forward_input

        def make(made: Any = made) -> Callable[..., Any]:
            torch.manual_seed(0)
            return info.module_cls(*made.args, **made.kwargs)

        yield index, make, (tuple(given.args), dict(given.kwargs))


def _arranged(arguments: Any, size: str, layout: str) -> Any:
    """The arguments with each strided tensor arranged so; None if it cannot be."""
    made: dict[int, Tensor] = {}

    def changed(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            return value
        if id(value) not in made:
            tensor = LAYOUTS[layout](SIZES[size](value.detach()))
            made[id(value)] = tensor.detach().requires_grad_(value.requires_grad)
        return made[id(value)]

    try:
        return tree_map(changed, arguments)
    except RuntimeError:
        return None


def is_strided(arguments: Any) -> bool:
    """Whether there are arguments, and all tensors among them are strided."""
    tensors = [v for v in tree_flatten(arguments)[0] if isinstance(v, Tensor)]
    return arguments is not None and all(t.layout == torch.strided for t in tensors)


def _key(arguments: Any) -> Any:
    flat, _ = tree_flatten(arguments)
    return tuple(
        (tuple(v.shape), v.stride()) if isinstance(v, Tensor) and v.layout == torch.strided else ()
        for v in flat
    )
