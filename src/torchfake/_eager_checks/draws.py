"""Trials of draws, which eager refuses for their generators, dtypes or parameters.

Input: a call that draws. Output: nothing, or the error that eager raises. Invariant: no generator
of the program moves. Draws that passed are remembered.
"""

from __future__ import annotations

import re
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
from torchfake._operators.operator_call import Args, Call, Kwargs, output_device
from torchfake._random import fake_generators
from torchfake._torch import backends


def check_generator(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Refuse a generator of another device type than the result's, as kernels do that draw: not on
    meta, and not for no elements.
    """
    given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Generator)]
    if not given:
        return
    call, own = Call(func, args, kwargs), fake_generators.device_of(given[0]).type
    expected = output_device(call).type
    if own != expected != "meta" and not _draws_nothing(call):
        raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{own}'")


RANDINT_TO_TENSOR = torch.ops.aten.randint_like.Tensor


def check_end(args: Args) -> None:
    """Refuse the end of a range that is no number on the CPU: of a trial, the overload with a
    generator would take any tensor of one element.
    """
    if args[1].dim() or not args[1].is_cpu:
        raise RuntimeError("high must be a scalar tensor and on CPU")


def _draws_nothing(call: Call) -> bool:
    if call.tensors:
        return call.tensors[0].numel() == 0
    sizes = [value for value in call.args if isinstance(value, (list, tuple))]
    return 0 in sizes[0] if sizes else call.args[0] == 0  # of randperm


_MAX_DRAWN = 16
"""Number of elements drawn in a trial: from 16 on, normal numbers take another kernel."""


@lru_cache(maxsize=1)
def _generator() -> torch.Generator:
    return torch.Generator(device="cpu")


_passed: set[Any] = set()
"""Trials of draws that have passed. Trials that fail are run again."""
_MAX_PASSED = 50_000


def try_draw(call: Call) -> None:
    """Run a draw on small tensors, from a generator of its own. Parameters keep the values that are
    known.
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
"""Operators that are tried although they take no generator. Others choose their kernel by device
(attention) or consist of many operators (recurrent layers).
"""


def _cut_of_draw(call: Call) -> Cut:
    num_tensors = len(call.tensors)
    if call.traits.packet == "aten::multinomial":
        return Cut(2, None)
    if num_tensors > 1 and sum(t.numel() for t in call.tensors) <= MAX_TRIAL_ELEMENTS:
        return Cut()
    return Cut(1, 1 if num_tensors > 1 else _MAX_DRAWN, lists=not num_tensors)


def _length_to_permute(length: Any, kwargs: dict[str, Any]) -> Any:
    """A length to try: 1 if any length fits the dtype, otherwise `length`."""
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
    return type(value), value if value == value else object()  # a nan matches no key


def _try(func: Any, args: Any, kwargs: dict[str, Any], device_type: str) -> None:
    try:
        run_small(func, args, kwargs)
    except NotImplementedError as error:
        if device_type == "cpu" and NO_DTYPE in str(error):
            raise
        may_not_draw = func.overloadpacket is torch.ops.aten.rrelu_with_noise
        if device_type == "cuda" and not may_not_draw and _NO_INTEGER.search(str(error)):
            raise NotImplementedError(str(error).replace("cpu", "cuda")) from None


_NO_INTEGER = re.compile(NO_DTYPE + "(Long|Int|Short|Char|Byte|Bool)'")
"""Integers in which CUDA draws no numbers either; of the floating dtypes it may have more."""
