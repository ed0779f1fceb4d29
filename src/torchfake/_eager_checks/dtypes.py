"""Dtypes that eager refuses as arguments, found by running the CPU kernel on small tensors.

Input: a call that has no recipe yet. Output: nothing, or the error that eager would raise.
Invariant: a call that eager accepts is accepted; no generator of the program moves.

Most meta kernels accept any dtype, and hardly any checks the parameters of a distribution. So a
call is tried: its CPU kernel is run on small real tensors of the same dtypes. Trials that passed
are remembered here, and the cache remembers their calls.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import torch

from torchfake._core import devices, schemas
from torchfake._eager_checks import cuda_dtypes
from torchfake._eager_checks.draws import (
    RANDINT_TO_TENSOR,
    check_end,
    check_generator,
    try_draw,
)
from torchfake._eager_checks.small_calls import (
    NO_DTYPE,
    Cut,
    cuts_for,
    error_of,
    num_elements_on_meta,
    refuses_outputs,
)
from torchfake._operators.handlers.special_operators import handler_of
from torchfake._operators.operator_call import (
    Args,
    Call,
    Kwargs,
    named_arguments,
    output_device,
    tensors_in,
)
from torchfake._tensor.fake_tensor import FakeTensor


def check_dtypes(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise the CPU kernel's error for the dtypes of a call, or for the parameters of a draw."""
    traits = schemas.traits_of(func)
    if not traits.is_random and _is_exempt(func):
        return
    if traits.is_random:
        check_generator(func, args, kwargs)
        if func is RANDINT_TO_TENSOR:
            check_end(args)
    call = Call(func, args, kwargs)
    if call.tensors and not any(isinstance(t, FakeTensor) for t in call.tensors):
        return
    if traits.is_random:
        call.device = output_device(call)
        if call.device.type != "meta":
            try_draw(call)
        return
    device = output_device(call)
    if device == devices.CPU:
        _try_kernel(call)
    elif device.type == "cuda" and (cuda_dtypes.is_like_cpu(call) or cuda_dtypes.is_mixed(call)):
        check_cuda_dtypes(call)


def check_cuda_dtypes(call: Call) -> None:
    """Refuse dtypes of a call on CUDA, of which most are those that the CPU refuses."""
    cuda_dtypes.check_integers(call)
    cuda_dtypes.check_norms(call)
    try:
        _try_kernel(call)
    except RecursionError:
        raise
    except Exception as error:
        cuda_dtypes.raise_for_cuda(call, error)


_MAX_TRIALS = 4
_MAX_KEPT = 50_000
_num_trials: dict[Any, int] = {}
"""Number of inconclusive trials, by operator and dtypes; the maximum once a trial has passed."""


@lru_cache(maxsize=4096)
def _is_exempt(func: Any) -> bool:
    """Whether an operator is never tried: a library's may do anything, and a view has no kernel."""
    traits = schemas.traits_of(func)
    no_kernel = traits.is_view or traits.is_metadata_only or traits.returns_uninitialized
    no_result = not traits.returns_tensors and not traits.mutated_names
    is_special = handler_of(func) is not None or traits.reads_values or func.namespace != "aten"
    return is_special or no_kernel or no_result


def _try_kernel(call: Call) -> None:
    """Run the CPU kernel on small tensors of ones, and raise its error if that is about dtypes.

    The kernel may fail for sizes and values, too. So an error counts only if it names the dtype as
    the reason, or if the kernel accepts the call with a usual dtype in place of one of its dtypes.
    """
    key = (call.func, torch.get_default_dtype(), *map(_dtypes_of, call.args),
           *map(_dtypes_of, call.kwargs.items()), *_large_numbers(call))  # fmt: skip
    if _num_trials.get(key, 0) >= _MAX_TRIALS:
        return
    if len(_num_trials) >= _MAX_KEPT:
        _num_trials.clear()
    for cut in cuts_for(call):
        error = error_of(call, cut)
        if _accepts(error):
            _num_trials[key] = _MAX_TRIALS
            return
        assert error is not None
        if _names_dtypes(str(error)) or _is_about_dtypes(call, cut):
            if num_elements_on_meta(call, Cut()) is None:
                return  # eager compares sizes first, and the meta kernel will
            raise error
    if num_elements_on_meta(call, Cut()) is not None:  # else it is refused, and says nothing
        _num_trials[key] = _num_trials.get(key, 0) + 1


_WRITES_NUMBER = frozenset(
    f"aten::{name}" for name in ("fill", "fill_", "full", "full_like", "new_full", "masked_fill",
                                 "masked_fill_", "index_fill", "index_fill_", "constant_pad_nd")
)  # fmt: skip
"""Operators that write a number unchanged. Others compute in a larger dtype."""

_MAX_OF_ANY_DTYPE = 127


def _large_numbers(call: Call) -> list[Any]:
    """The numbers to write that not every dtype can hold: eager refuses an overflow."""
    if call.traits.packet not in _WRITES_NUMBER:
        return []
    numbers = [n for n in (*call.args, *call.kwargs.values()) if type(n) in (int, float, complex)]
    return [n for n in numbers if abs(n) > _MAX_OF_ANY_DTYPE or (type(n) is int and n < 0)]


def _names_dtypes(message: str) -> bool:
    """Whether a kernel's message is about a dtype; the second text is for float indices."""
    return NO_DTYPE in message or "one of the following scalar types" in message


def _is_about_dtypes(call: Call, cut: Cut) -> bool:
    """Whether the kernel accepts the call with a usual dtype in place of one of the dtypes, in all
    arguments or in one of them, which then may have the dtype of another one, too; or the call
    without its ``out=``.
    """
    if refuses_outputs(call, cut):
        return True
    dtypes = {t.dtype for t in call.tensors}
    dtypes |= {v for v in (*call.args, *call.kwargs.values()) if isinstance(v, torch.dtype)}
    pairs = [(d, usual) for d in dtypes for usual in _USUAL_DTYPES if d is not usual]
    cuts = [cut._replace(replaced=pair) for pair in pairs]
    arguments = named_arguments(call.func, call.args, call.kwargs)
    for name, argument in arguments.items() if len(call.tensors) > 1 else ():
        own = {t.dtype for t in tensors_in((argument,), {})}
        if isinstance(argument, (list, tuple)):
            own -= _OF_MASKS
        others = dict.fromkeys((*dtypes, *_USUAL_DTYPES, *_OF_RESULTS))
        pairs = [(d, other) for d in own for other in others if d is not other]
        cuts += [cut._replace(replaced=pair, only=name) for pair in pairs]
    return any(_accepts(error_of(call, each)) for each in cuts)


def _accepts(error: Exception | None) -> bool:
    """Whether the kernel has accepted dtypes: it compares them before it looks at indices."""
    return error is None or (isinstance(error, IndexError) and bool(_OUTSIDE.search(str(error))))


_OUTSIDE = re.compile("out of (range|bounds)")


_USUAL_DTYPES = (torch.float32, torch.complex64, torch.float64)
_OF_RESULTS = (torch.bool, torch.int64, torch.int32)
_OF_MASKS = {torch.bool, torch.uint8}
"""Among indices, masks: in another dtype they would be positions, of which there are as many as the
mask has elements, whatever their values are."""


def _dtypes_of(arg: Any) -> Any:
    """The properties of an argument that may decide which dtypes are accepted."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, min(arg.numel(), 2)  # with at most one element, some accept any dtype
    if isinstance(arg, (list, tuple)):
        return tuple(dict.fromkeys(map(_dtypes_of, arg)))
    return arg if isinstance(arg, (torch.dtype, str, bool)) else type(arg)
