"""Calls with ``out=``, whose results are resized, cast or strided, against eager.

Input: the name of an operator, whose arguments `calls` arranges. Output: for each kind of ``out=``
what eager leaves there, and how fakes and materialized tensors differ: size, strides, the size of
the storage, and the values, bit by bit. Invariant: eager runs last, since it may end the process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

import torchfake
from tests.strides.calls import MODULES, NAMES, OPERATORS, Case, cases_of
from tests.strides.outcomes import IS_OF_VALUES, fakes_of

_WITHOUT = {
    **dict.fromkeys(
        ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
         "new_empty_strided"),
        "uninitialized memory",
    ),
    **dict.fromkeys(
        ("as_strided_copy",), "it reads memory beyond its argument, which is not copied here"
    ),
    **dict.fromkeys(
        ("tril", "triu", "lu_unpack", "linalg.lu"), "eager ends the process for strided ``out=``"
    ),
}  # fmt: skip
"""Operators that are left out, and why."""

OUTPUT_NAMES = [
    name
    for name in NAMES
    if name not in MODULES and OPERATORS[name].supports_out and name not in _WITHOUT
]

_WIDER = {
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.int64: torch.float32,
    torch.int32: torch.int64,
    torch.bool: torch.float32,
}

Place = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""The size, strides and dtype of a tensor."""


def _empty(size: tuple[int, ...], dtype: torch.dtype) -> Place:
    return (0,), (1,), dtype


def _of_other_size(size: tuple[int, ...], dtype: torch.dtype) -> Place:
    return (3, 2, 5), (5, 15, 1), dtype


def _reversed(size: tuple[int, ...], dtype: torch.dtype) -> Place:
    strides, step = [], 1
    for length in size:
        strides.append(step)
        step *= max(1, length)
    return size, tuple(strides), dtype


def _gapped(size: tuple[int, ...], dtype: torch.dtype) -> Place:
    like = torch.empty((*size, 2), device="meta")[..., 0]
    return size, like.stride(), dtype


def _empty_of_other_dtype(size: tuple[int, ...], dtype: torch.dtype) -> Place:
    return (0,), (1,), _WIDER.get(dtype, dtype)


def _of_other_dtype(size: tuple[int, ...], dtype: torch.dtype) -> Place:
    return size, torch.empty(size, device="meta").stride(), _WIDER.get(dtype, dtype)


KINDS: dict[str, Callable[[tuple[int, ...], torch.dtype], Place]] = {
    f.__name__.strip("_"): f
    for f in (_empty, _of_other_size, _reversed, _gapped, _empty_of_other_dtype, _of_other_dtype)
}


class OutCase(NamedTuple):
    """A call, and where its results are to be written."""

    case: Case
    kind: str
    places: tuple[Place, ...]
    is_one: bool

    @property
    def label(self) -> str:
        return f"{self.case.label}, {self.kind}"


def out_cases_of(name: str, limit: int | None, step: int = 1) -> Iterator[OutCase]:
    for case in cases_of(name, limit, step):
        found = _results_on_fakes(case)
        if found is None:
            continue
        results = (found,) if isinstance(found, Tensor) else tuple(found)
        for kind, place in KINDS.items():
            places = tuple(place(tuple(r.shape), r.dtype) for r in results)
            yield OutCase(case, kind, places, isinstance(found, Tensor))


def _results_on_fakes(case: Case) -> Any:
    """The results without ``out=``; None if the call is refused or gives no tensors."""
    with torchfake.fake_mode(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args, kwargs = fakes_of(case.arguments)
        try:
            found = case.make()(*args, **kwargs)
        except Exception:
            return None
    flat = found if isinstance(found, (list, tuple)) else [found]
    return found if flat and all(isinstance(t, Tensor) for t in flat) else None


Outcome = list[Any] | Exception


def _run(case: OutCase, arguments: Any) -> tuple[Tensor, ...] | Exception:
    outs = []
    for size, strides, dtype in case.places:
        outs.append(torch.empty_strided(size, strides, dtype=dtype).zero_())
    args, kwargs = arguments
    kwargs.pop("device", None)  # of factories: C++ compares it with the carrier of ``out=``
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            case.case.make()(*args, **kwargs, out=outs[0] if case.is_one else tuple(outs))
    except Exception as error:
        return error
    return tuple(outs)


def _layout(tensor: Tensor) -> Any:
    place = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    return (*place, str(tensor.dtype), tensor.untyped_storage().nbytes())


def fake_outcome(case: OutCase) -> tuple[Any, Any]:
    """The outputs' layouts on fakes, and the materialized outputs; or an error for each."""
    with torchfake.fake_mode():
        left = _run(case, fakes_of(case.case.arguments))
        layouts = left if isinstance(left, Exception) else [_layout(t) for t in left]
    with torchfake.deferred_mode():
        recorded = _run(case, tree_map(_deferred, case.case.arguments))
    if isinstance(recorded, Exception):
        return layouts, recorded
    try:
        return layouts, [torchfake.materialize_tensor(t) for t in recorded]
    except Exception as error:
        return layouts, error


def _deferred(value: Any) -> Any:
    """The same values in the same layout, deferred."""
    if not isinstance(value, Tensor):
        return value
    whole = value.detach()
    once = whole
    for dim, stride in enumerate(whole.stride()):
        once = once[(slice(None),) * dim + (slice(1 if stride == 0 else None),)]
    copy = torch.empty_strided(once.shape, once.stride(), dtype=once.dtype).copy_(once)
    return copy.expand(whole.shape)


def difference(case: OutCase, fakes: tuple[Any, Any]) -> tuple[str, str] | None:
    real = _run(case, tree_map(_plain, case.case.arguments))
    layouts, materialized = fakes
    if isinstance(real, Exception):
        if isinstance(layouts, Exception):
            return None
        kind = "values" if IS_OF_VALUES.search(str(real)) else "accepted"
        if "dtype" in case.kind and kind == "accepted" and _has_empty(case):
            kind = "dtype of nothing"
        return kind, f"{type(real).__name__}: {(str(real).splitlines() or [''])[0][:200]}"
    for error in (layouts, materialized):
        if isinstance(error, Exception):
            kind = "refused" if isinstance(error, torchfake.errors.TorchFakeError) else "error"
            return kind, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    expected = [_layout(t) for t in real]
    if layouts != expected:
        return "out", f"{layouts} is not {expected}"
    if (found := [_layout(t) for t in materialized]) != expected:
        return "materialized", f"{found} is not {expected}"
    for i, (one, other) in enumerate(zip(materialized, real, strict=True)):
        if not torch.equal(_bits(one), _bits(other)):
            return "out values", f"{i}"
    return None


def _has_empty(case: OutCase) -> bool:
    tensors = [v for v in tree_flatten(case.case.arguments)[0] if isinstance(v, Tensor)]
    return any(not tensor.numel() for tensor in tensors)


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _bits(tensor: Tensor) -> Tensor:
    in_order = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return in_order.reshape(-1).view(torch.uint8)
