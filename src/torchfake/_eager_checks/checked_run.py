"""Runs one operator on fakes, without the cache, after the checks of this package.

Input: an operator and its arguments. Output: its result, from its handler or from the general
procedure of ``_operators/interpreter``. Invariant: what eager refuses is refused before anything is
computed, and a RecursionError of the program stays one.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch

from torchfake._core import devices
from torchfake._eager_checks.cuda_dtypes import check_kernel
from torchfake._eager_checks.dtypes import check_dtypes
from torchfake._eager_checks.overlaps import check_overlaps
from torchfake._eager_checks.strings import check_strings
from torchfake._eager_checks.values import check_values
from torchfake._operators.handlers.special_operators import handler_of
from torchfake._operators.interpreter import interpret
from torchfake._operators.operator_call import Args, Kwargs, tensors_in
from torchfake._tensor.fake_tensor import FakeTensor


def run(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Check the arguments as eager would, and run the operator without the cache."""
    check_kernel(func, args, kwargs)
    _check_copied(func, args, kwargs)
    check_overlaps(func, args, kwargs)
    check_values(func, args, kwargs)
    check_strings(func, args, kwargs)
    check_dtypes(func, args, kwargs)
    run, handled = handler_of(func) or interpret, sys.exc_info()[1]
    try:
        return run(func, args, kwargs)
    except Exception as error:
        _raise_recursion_error(error, handled)
        _name_types_as_eager(error, args)
        raise


_COPIES = {torch.ops.aten._to_copy.default: 0, torch.ops.aten.copy_.default: 1}
"""Operators that copy between devices, and the positions of what they copy."""


def _check_copied(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Refuse to copy a meta tensor that is no fake to a device with data."""
    source = args[_COPIES[func]] if func in _COPIES else None
    if isinstance(source, torch.Tensor) and not isinstance(source, FakeTensor) and source.is_meta:
        target = args[0].device if source is not args[0] else kwargs.get("device")
        if target is not None and devices.decode(target).type != "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")


def _raise_recursion_error(error: BaseException | None, handled: BaseException | None) -> None:
    """Raise the RecursionError that led to `error`, which kernels in Python turn into one about
    shapes; not one that the program handles, in which case it ran the operator.
    """
    while error is not None and error is not handled:
        if isinstance(error, RecursionError):
            raise error
        error = error.__cause__ or error.__context__


_TYPE_ON_META = re.compile(r"\bMeta(\w+)Type\b")


def _name_types_as_eager(error: Exception, args: Args) -> None:
    """Give types in the text of `error` the names that they have on the device of the fakes."""
    text = error.args[0] if error.args else None
    if isinstance(text, str) and "Type" in text:
        is_on_cuda = any(tensor.device.type == "cuda" for tensor in tensors_in(args, {}))
        name = rf"torch.{'cuda.' if is_on_cuda else ''}\1Tensor"
        error.args = (_TYPE_ON_META.sub(name, text), *error.args[1:])
