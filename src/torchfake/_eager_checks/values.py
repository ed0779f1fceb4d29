"""Known values that eager refuses: indices out of range, wrong lengths, singular matrices.

Input: a call before it runs. Output: nothing, or the error that eager raises. Invariant: unknown
values are assumed to be accepted; nothing is recorded, and no generator of the program moves.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from torchfake._core.schemas import traits_of
from torchfake._eager_checks.conditions import Condition, Conditions, conditions_with
from torchfake._eager_checks.indices import INDICES, Range
from torchfake._eager_checks.no_elements import (
    WRONG_DIMS,
    conditions_on_bins,
    conditions_on_dims,
    conditions_on_none,
    counts,
    has_no_elements,
)
from torchfake._eager_checks.products import PRODUCTS, conditions_of_product
from torchfake._operators.argument_values import is_readable, value_read
from torchfake._operators.operator_call import (
    Args,
    Kwargs,
    mutated_arguments,
    named_arguments,
    tensors_in,
)
from torchfake._tensor.fake_tensor import is_deferred_fake
from torchfake._torch import dispatcher
from torchfake._unknown_values import finiteness

_CONDITIONS: dict[str, Conditions] = conditions_with(INDICES)


def check_values(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise the error that eager would raise for a known value among the arguments."""
    for each in _conditions(func, args, kwargs):
        if _applies(each) and all(map(is_readable, each.read)):
            with dispatcher.as_eager():
                refusal = each.refusal(*map(value_read, each.read))
            if refusal is not None:
                raise refusal


_INDICES = frozenset((torch.int64, torch.int32, torch.uint8, torch.bool))


def _applies(each: Condition | Range) -> bool:
    """Whether the kernel checks a condition: those on CUDA check indices, in device code. Indices
    of a dtype that no kernel takes are refused for their dtype, before their values are read.
    """
    if isinstance(each, Range):
        return all(t.dtype in _INDICES for t in each.read)
    return all(t.device.type == "cpu" for t in each.read)


def check_recorded_values(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise the error that eager would raise for a call that is recorded; otherwise the replay
    would raise it. Outside of deferred modes, known values are computed at once, and raise it.
    """
    packet = traits_of(func).packet
    if packet in _CONDITIONS:
        check_values(func, args, kwargs)
    if packet in _FAIL_BY_VALUES and not (
        packet in _CHECK_IF_ASKED and not _asks(func, args, kwargs)
    ):
        _try_on_values(func, args, kwargs)


@lru_cache(4096)
def checks_values(func: Any) -> bool:
    """Whether values among the arguments of `func` may be refused here, when they are known."""
    packet = traits_of(func).packet
    is_checked = packet in _CONDITIONS and (
        func._overloadname.endswith("_mode") or packet not in _DIV
    )
    return is_checked or packet in _FAIL_BY_VALUES


_DIV = ("aten::div", "aten::div_")


def takes_values(packet: str) -> bool:
    """Whether there are conditions on arguments of the operators of `packet`, beside that a divisor
    is not zero, which keys of the cache tell (``mark_of_divisor``).
    """
    return packet in _CONDITIONS and not finiteness.divides(packet.removesuffix("_"))


def has_known_value(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether a condition reads a known value, so that each such call has to be checked."""
    if not takes_values(traits_of(func).packet):
        return False
    found = _conditions(func, args, kwargs)
    return any(each.read and all(map(_is_read_in_place, each.read)) for each in found)


def _is_read_in_place(tensor: Any) -> bool:
    """Whether a value is known and not recorded: calls that are recorded are checked each time."""
    return not is_deferred_fake(tensor) and is_readable(tensor)


def _conditions(func: Any, args: Args, kwargs: Kwargs) -> Iterator[Condition | Range]:
    packet = traits_of(func).packet
    if packet in WRONG_DIMS and WRONG_DIMS[packet](*args, **kwargs):
        return conditions_on_dims(func, args, kwargs)
    if has_no_elements(func, args):
        return conditions_on_none(func, args, kwargs)
    if counts(func):
        return conditions_on_bins(func, args, kwargs)
    if packet in PRODUCTS:
        return conditions_of_product(func, named_arguments(func, args, kwargs))
    conditions = _CONDITIONS.get(packet)
    return iter(()) if conditions is None else conditions(named_arguments(func, args, kwargs))


def _asks(func: Any, args: Args, kwargs: Kwargs) -> bool:
    return bool(named_arguments(func, args, kwargs).get("check_errors", False))


def _try_on_values(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Run a call on copies of its values, if they are all known, for its error."""
    tensors = tensors_in(args, kwargs)
    if any(t.device.type != "cpu" for t in tensors) or not all(map(is_readable, tensors)):
        return
    if mutated_arguments(traits_of(func), args, kwargs):
        return
    with dispatcher.as_eager(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the replay warns
        func(*map(_with_values, args), **{name: _with_values(arg) for name, arg in kwargs.items()})


def _with_values(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return value_read(arg)
    if isinstance(arg, (list, tuple)):
        return [_with_values(item) for item in arg]
    return arg


_CHECK_IF_ASKED = frozenset(
    f"aten::{name}"
    for name in ("linalg_inv_ex", "_linalg_solve_ex", "linalg_cholesky_ex", "linalg_ldl_factor_ex",
                 "linalg_lu_factor_ex")
)  # fmt: skip
"""Operators that refuse values only with ``check_errors=True``."""

_FAIL_BY_VALUES = _CHECK_IF_ASKED | {
    f"aten::{name}"
    for name in ("_linalg_svd", "linalg_eig", "_linalg_eigvals", "linalg_eigvals", "linalg_lstsq",
                 "linalg_pinv", "linalg_ldl_solve", "cholesky_inverse", "histc", "histogram",
                 "_histogramdd_bin_edges", "fake_quantize_per_channel_affine_cachemask",
                 "fake_quantize_per_tensor_affine_cachemask", "multi_margin_loss", "pow")
}  # fmt: skip
"""Operators that refuse values by what they compute of all arguments."""
