"""What eager refuses and meta kernels let pass, found by running the CPU kernel on small tensors.

Input: a call that has no recipe yet. Output: nothing, or the error that eager would raise.
Invariant: what eager accepts is accepted; no generator of the program moves.

Most meta kernels accept any dtype, and hardly any looks at the parameters of a distribution. What
the CPU kernels say about these is found by a trial: they are run on small real tensors of the same
dtypes. Trials that passed are remembered here, and the cache remembers their calls.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from torchfake._core import devices, schemas
from torchfake._eager_checks.draws import try_draw
from torchfake._eager_checks.small_calls import NO_DTYPE, Cut, cuts_for, error_of
from torchfake._operators.operator_call import Args, Call, Kwargs, output_device
from torchfake._operators.special_operators import handler_of
from torchfake._tensor.fake_tensor import FakeTensor


def check_dtypes(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise what the CPU kernel raises for these dtypes or, of a draw, for these parameters."""
    traits = schemas.traits_of(func)
    if not traits.is_random and _is_exempt(func):
        return
    call = Call(func, args, kwargs)
    if call.tensors and not any(isinstance(t, FakeTensor) for t in call.tensors):
        return
    if traits.is_random:
        call.device = output_device(call)
        if call.device.type != "meta":
            try_draw(call)
    elif output_device(call) == devices.CPU:
        _try_kernel(call)


_MAX_TRIALS = 4
_MAX_KEPT = 50_000
_num_trials: dict[Any, int] = {}
"""By operator and dtypes: how many trials have had no answer; many, if one has passed."""


@lru_cache(maxsize=4096)
def _is_exempt(func: Any) -> bool:
    """Whether an operator is never tried: those of others may do anything; a view has no kernel."""
    traits = schemas.traits_of(func)
    no_kernel = traits.is_view or traits.is_metadata_only or traits.returns_uninitialized
    no_result = not traits.returns_tensors and not traits.mutated_names
    is_special = handler_of(func) is not None or traits.reads_values or func.namespace != "aten"
    return is_special or no_kernel or no_result


def _try_kernel(call: Call) -> None:
    """Raise what the CPU kernel raises for these dtypes, on small tensors of ones.

    It may fail for sizes and values, too. So it counts only if it says that the dtype is the
    reason, or if it accepts the same call with float32 or complex64 in place of a dtype.
    """
    key = (call.func, torch.get_default_dtype(), *map(_dtypes_of, call.args),
           *map(_dtypes_of, call.kwargs.items()), *_large_numbers(call))  # fmt: skip
    if _num_trials.get(key, 0) >= _MAX_TRIALS:
        return
    if len(_num_trials) >= _MAX_KEPT:
        _num_trials.clear()
    for cut in cuts_for(call):
        error = error_of(call, cut)
        if error is None:
            _num_trials[key] = _MAX_TRIALS
            return
        if _names_dtypes(str(error)) or _is_about_dtypes(call, cut):
            raise error
        if error_of(call, cut, "meta") is not None:
            return  # for another reason, which the meta kernel will give: nothing was tried
    _num_trials[key] = _num_trials.get(key, 0) + 1


_WRITES_NUMBER = frozenset(
    f"aten::{name}" for name in ("fill", "fill_", "full", "full_like", "new_full", "masked_fill",
                                 "masked_fill_", "index_fill", "index_fill_", "constant_pad_nd")
)  # fmt: skip
"""Operators that write a number as it is. Others compute in a larger dtype."""

_MAX_OF_ANY_DTYPE = 127


def _large_numbers(call: Call) -> list[Any]:
    """The numbers that are written and that not every dtype can hold: eager refuses an overflow."""
    if call.traits.packet not in _WRITES_NUMBER:
        return []
    numbers = [n for n in (*call.args, *call.kwargs.values()) if type(n) in (int, float, complex)]
    return [n for n in numbers if abs(n) > _MAX_OF_ANY_DTYPE or (type(n) is int and n < 0)]


def _names_dtypes(message: str) -> bool:
    """Whether a kernel says that it refuses a dtype; of indices that are floats, in torch 2.12."""
    return NO_DTYPE in message or "one of the following scalar types" in message


def _is_about_dtypes(call: Call, cut: Cut) -> bool:
    """Whether the kernel accepts the call with a usual dtype in place of one of the dtypes."""
    dtypes = {t.dtype for t in call.tensors}
    dtypes |= {v for v in (*call.args, *call.kwargs.values()) if isinstance(v, torch.dtype)}
    pairs = [(d, usual) for d in dtypes for usual in _USUAL_DTYPES if d is not usual]
    return any(error_of(call, cut._replace(replaced=pair)) is None for pair in pairs)


_USUAL_DTYPES = (torch.float32, torch.complex64, torch.float64)


def _dtypes_of(arg: Any) -> Any:
    """What of an argument may decide which dtypes are accepted."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, min(arg.numel(), 2)  # of none or one element, some accept any dtype
    if isinstance(arg, (list, tuple)):
        return tuple(dict.fromkeys(map(_dtypes_of, arg)))
    return arg if isinstance(arg, (torch.dtype, str, bool)) else type(arg)
