"""Trials of draws: parameters decide whether eager refuses one, as well as dtypes.

Input: a call that draws. Output: nothing, or the error that eager raises. Invariant: no generator
of the program moves. Draws that passed are remembered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from torchfake._core import schemas
from torchfake._eager_checks.small_calls import (
    MAX_TRIAL_ELEMENTS,
    NO_DTYPE,
    Cut,
    run_small,
    small,
    small_values,
)
from torchfake._operators.constant_propagation import is_known
from torchfake._operators.operator_call import Call
from torchfake._torch import backends

_MAX_DRAWN = 16
"""So many elements are drawn in a trial: from there on, normal numbers take another kernel."""


@lru_cache(maxsize=1)
def _generator() -> torch.Generator:
    return torch.Generator(device="cpu")


_passed: set[Any] = set()
"""Trials of draws that have passed. Those that fail do so again."""
_MAX_PASSED = 50_000


def try_draw(call: Call) -> None:
    """Run a draw on small tensors, from a generator of its own. Parameters that have known values
    keep them.
    """
    cut = _cut_of_draw(call)
    keeps_known = call.traits.checks_parameters and any(map(is_known, call.tensors))
    key = None if keeps_known else _key_of_draw(call, cut)
    if key in _passed:
        return
    overload = schemas.overload_with_generator(call.func)
    args = [small(arg, cut, keeps_known=keeps_known) for arg in call.args]
    kwargs = small_values(call.kwargs, cut, keeps_known=keeps_known)
    if call.traits.packet == "aten::randperm":
        args[0] = _length_to_permute(args[0], kwargs)
    if overload is not None:
        args = [arg for arg in args if not isinstance(arg, torch.Generator)]
        kwargs["generator"] = _generator()
        _try(overload, args, kwargs, call.device.type)
    elif call.traits.packet in _DRAWS_FROM_DEFAULT:
        with backends.default_generator_kept():
            _try(call.func, args, kwargs, call.device.type)
    if key is not None and len(_passed) < _MAX_PASSED:
        _passed.add(key)


_DRAWS_FROM_DEFAULT = frozenset({"aten::native_dropout", "aten::dropout", "aten::alpha_dropout"})
"""Operators without a parameter for a generator that are tried. Others choose their kernel by the
device (attention) or are made of many operators (recurrent layers).
"""


def _cut_of_draw(call: Call) -> Cut:
    num_tensors = len(call.tensors)
    if call.traits.packet == "aten::multinomial":
        return Cut(2, None)
    if num_tensors > 1 and sum(t.numel() for t in call.tensors) <= MAX_TRIAL_ELEMENTS:
        return Cut()
    return Cut(1, 1 if num_tensors > 1 else _MAX_DRAWN, lists=not num_tensors)


def _length_to_permute(length: Any, kwargs: dict[str, Any]) -> Any:
    """The length, or 1 where it is long and every length fits the dtype."""
    out = kwargs.get("out")
    dtype = out.dtype if out is not None else kwargs.get("dtype") or torch.int64
    fits = dtype in (torch.int64, torch.float64) or (dtype == torch.int32 and length < 1 << 31)
    return 1 if fits and length > 1 else length


def _key_of_draw(call: Call, size: Cut) -> Any:
    parts: list[Any] = [call.func, call.device.type, torch.get_default_dtype()]
    for value in (*call.args, *call.kwargs.items()):
        parts.append(_key_part(value, size))
    return tuple(parts)


def _key_part(value: Any, size: Cut) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, size.of(value.shape)
    if isinstance(value, (list, tuple)):
        parts = tuple(_key_part(item, size) for item in value)
        return size.of(parts) if size.lists and all(type(p) is int for p in parts) else parts
    if isinstance(value, torch.Generator):
        return None
    return type(value), value if value == value else object()  # a nan is never found again


def _try(func: Any, args: Any, kwargs: dict[str, Any], device_type: str) -> None:
    try:
        run_small(func, args, kwargs)
    except NotImplementedError as error:
        if device_type == "cpu" and NO_DTYPE in str(error):
            raise
