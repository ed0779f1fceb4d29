"""Calls with a tensor without elements: each kernel refuses them in its own way, or accepts them;
and calls that a kernel refuses whatever the elements are: for bins, or for the number of dims.

Input: a call of an operator that indexes, rolls, pools, counts, or joins several tensors. Output:
the :class:`Condition` that eager accepts it. Invariant: eager itself is asked, of tensors that have
little memory or none; indices of unknown value are taken to be 0, which is refused if every index
is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchfake._core.schemas import traits_of
from torchfake._eager_checks.conditions import Condition
from torchfake._eager_checks.small_calls import error_raised
from torchfake._operators.argument_values import is_readable
from torchfake._operators.operator_call import Args, Kwargs, tensors_in

_ASKED = frozenset(
    f"aten::{name}{end}"
    for name in ("index", "_unsafe_index", "index_put", "_unsafe_index_put", "_index_put_impl",
                 "index_select", "index_add", "index_copy", "index_fill", "index_reduce", "take",
                 "put", "gather", "scatter", "scatter_add", "scatter_reduce", "embedding", "roll")
    for end in ("", "_")
) | {"aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d", "aten::grid_sampler_2d",
     "aten::grid_sampler_3d"}  # fmt: skip


_ASKED_OF_ANY = frozenset(
    f"aten::{name}"
    for name in ("convolution", "index_reduce", "index_reduce_", "linalg_lstsq", "masked_scatter",
                 "masked_scatter_", "nll_loss_forward", "nll_loss2d_forward", "put", "put_")
)  # fmt: skip
"""Operators of which any tensor decides, not just the first."""

_MAX_ELEMENTS = 1 << 14


def has_no_elements(func: Any, args: Args) -> bool:
    """Whether eager is asked for a call, since a tensor on the CPU has no elements."""
    packet = traits_of(func).packet
    if packet in _ASKED_OF_ANY:
        tensors = tensors_in(args, {})
        has_none = any(not t.numel() for t in tensors)
        is_small = sum(t.numel() for t in tensors) <= _MAX_ELEMENTS
        if has_none and is_small and all(t.device.type == "cpu" for t in tensors):
            return True
    if packet not in _ASKED or not args:
        return False
    tensor = args[0]
    return isinstance(tensor, torch.Tensor) and not tensor.numel() and tensor.device.type == "cpu"


def counts(func: Any) -> bool:
    """Whether an operator counts elements in bins, which its kernel checks before the elements."""
    return func in _COUNT


_COUNT = (torch.ops.aten.histogram.bin_ct, torch.ops.aten._histogramdd_bin_edges.default)


def conditions_on_bins(func: Any, args: Args, kwargs: Kwargs) -> Iterator[Condition]:
    """That eager accepts numbers and ranges of bins, for one element, or one row of them."""
    tensor, *rest = args
    size = (1,) * (tensor.dim() - 1) + tensor.shape[-1:] if func is _COUNT[1] else (1,)
    named = {name: arg for name, arg in kwargs.items() if not isinstance(arg, torch.Tensor)}

    def refusal() -> Exception | None:
        row = torch.zeros(size, dtype=tensor.dtype, device="cpu")
        return error_raised(lambda: func(row, *rest, **named))

    if tensor.device.type == "cpu":
        yield Condition((), refusal)


def _is_one_number(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or not value.dim()


WRONG_DIMS: dict[str, Callable[..., bool]] = {
    "aten::index_select": lambda tensor, _, index, **__: not tensor.dim() and index.numel() != 1,
    "aten::searchsorted": lambda bounds, value, **_: (
        not bounds.dim() or (bounds.dim() > 1 and _is_one_number(value))
    ),
    "aten::_grouped_mm": lambda *tensors, **_: any(t.dim() not in (2, 3) for t in tensors[:2]),
}
"""Whether a kernel on any device refuses a call for the dims of its arguments, which torch's Python
does not look at."""


def conditions_on_dims(func: Any, args: Args, kwargs: Kwargs) -> Iterator[Condition]:
    """That eager accepts the call, whatever the values are."""

    def refusal() -> Exception | None:
        named = dict(zip(kwargs, _stand_ins(kwargs.values(), {}), strict=True))
        return error_raised(lambda: func(*_stand_ins(args, {}), **named))

    yield Condition((), refusal)


def conditions_on_none(func: Any, args: Args, kwargs: Kwargs) -> Iterator[Condition]:
    """That eager accepts the call, with the indices whose values are known."""
    with_elements = [t for t in tensors_in(args, kwargs) if t.numel()]
    known = [t for t in with_elements if not t.dtype.is_floating_point and is_readable(t)]

    def refusal(*values: torch.Tensor) -> Exception | None:
        by_id = {id(t): value for t, value in zip(known, values, strict=True)}
        named = dict(zip(kwargs, _stand_ins(kwargs.values(), by_id), strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the call itself warns
            return error_raised(lambda: func(*_stand_ins(args, by_id), **named))

    yield Condition(tuple(known), refusal)


def _stand_ins(given: Any, values: dict[int, torch.Tensor]) -> list[Any]:
    """Tensors of the same sizes with at most one element of memory, and what is no tensor."""
    return [_stand_in(arg, values) for arg in given]


def _stand_in(arg: Any, values: dict[int, torch.Tensor]) -> Any:
    if isinstance(arg, (list, tuple)):
        return _stand_ins(arg, values)
    if not isinstance(arg, torch.Tensor):
        return arg
    if id(arg) in values:
        return values[id(arg)]
    if arg.numel() <= _MAX_ELEMENTS:  # which the operator may write
        return torch.zeros(arg.shape, dtype=arg.dtype, device="cpu")
    return torch.zeros((), dtype=arg.dtype, device="cpu").expand(arg.shape)
