"""Checks of the arguments of public functions. Errors name the argument and the remedy.

Input: an argument that a user passed, and its name. Output: the value that the argument stands for,
or a TypeError or ValueError. Invariant: no argument is changed, and no module is imported to check
one.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Mapping
from typing import Any

import torch

from torchfake.errors import CheckpointError, DeviceError


def check_flag(value: object, name: str) -> None:
    """Refuse a value that is not True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {_shown(value)}: give True or False")


def is_whole_number(value: object, least: int) -> bool:
    """Whether `value` is an integer, not a bool, from `least` up to torch's largest size."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and least <= value < 1 << 62  # type: ignore[operator]


def is_number_above_0(value: object) -> bool:
    """Whether `value` is a finite number above 0, not a bool."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf  # type: ignore[operator]


def check_mapping(value: object, name: str) -> None:
    """Refuse a value that is neither a mapping nor None."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} is {_shown(value)}: give a dict, or None")


def check_predicate(value: Any, name: str) -> None:
    """Refuse a value that is neither None nor callable with one submodule."""
    if value is not None and not _takes_one(value):
        raise TypeError(
            f"{name} is {_shown(value)}: give a function of one submodule that returns whether it "
            "is meant, or None for all"
        )


def _takes_one(value: Any) -> bool:
    try:
        inspect.signature(value).bind(None)
    except ValueError:  # a builtin without a signature
        return True
    except TypeError:
        return False
    return True


def check_dtype(value: object, name: str) -> None:
    """Refuse a value that is neither None nor a dtype to which floating point tensors are cast."""
    if value is None:
        return
    if not isinstance(value, torch.dtype):
        raise TypeError(f"{name} is {_shown(value)}: give a dtype, such as torch.bfloat16, or None")
    if not (value.is_floating_point or value.is_complex):
        raise TypeError(
            f"{name} is {value}: give a floating point or complex dtype, as for module.to(dtype)"
        )


def real_device(value: Any, name: str) -> torch.device | None:
    """The device of this machine that `value` names; None if `value` is None.

    Raises:
        TypeError: if `value` is of a type that names no device.
        DeviceError: (a ValueError) if this machine does not have the device, or it is ``meta``.
    """
    if value is None:
        return None
    device = named_device(value, name)
    if device.type == "meta":
        raise DeviceError(
            f"{name} is {_shown(value)}, and a tensor on meta has no values: its record would be "
            "lost. Leave the module deferred, or name a device that this machine has"
        )
    try:
        torch.empty(0, device=device)
        is_open = device.type == "cuda" and device.index is None
        return torch.device("cuda", torch.cuda.current_device()) if is_open else device
    except RecursionError:
        raise
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        raise DeviceError(
            f"{name} is {_shown(value)}, which this machine does not have ({reason}): leave "
            f"{name}= out, or pass 'cpu'"
        ) from error


def named_device(value: Any, name: str) -> torch.device:
    """The device that `value` names, whether this machine has it or not.

    Raises:
        TypeError: if `value` is of a type that names no device.
        DeviceError: (a ValueError) if torch knows no such device.
    """
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not (is_number or isinstance(value, (str, torch.device))):
        raise TypeError(f"{name} is {_shown(value)}: give a device, such as 'cpu' or 'cuda:0'")
    try:
        return torch.device("cuda", value) if is_number else torch.device(value)
    except (RuntimeError, ValueError) as error:
        raise DeviceError(
            f"{name} is {_shown(value)}, which is not a device: give one such as 'cpu' or 'cuda:0'"
        ) from error


def check_checkpoint(value: Any, name: str) -> None:
    """Refuse a value that cannot name or be a checkpoint. Reading it finds whether it exists, and
    fails on all ranks alike.
    """
    if value is None or isinstance(value, Mapping):
        return
    if not isinstance(value, (str, os.PathLike)):
        raise CheckpointError(
            f"{name} is {_shown(value)}: a checkpoint is a directory, a file or a state dict"
        )


def check_threads(value: object, name: str) -> None:
    """Refuse a value that is not a number of threads."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r}: give a number of threads, 1 or more, or None")


def check_rank(value: object, name: str) -> None:
    """Refuse a value that is not a rank."""
    if type(value) is not int:
        raise TypeError(f"{name} is {_shown(value)}: give the number of a rank, such as 0")


def check_strings(value: Any, name: str) -> None:
    """Refuse a value that is not a list or tuple of strings."""
    is_list = isinstance(value, (list, tuple))
    if not (is_list and all(isinstance(item, str) for item in value)):
        raise TypeError(f"{name} is {_shown(value)}: give a list of strings, such as ['depth=2']")


def check_text(value: object, name: str, example: str) -> None:
    """Refuse a value that is not a string.

    Raises:
        TypeError: naming the argument.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is {_shown(value)}: give a string, such as {example!r}")


def check_path(value: object, name: str) -> None:
    """Refuse a value that is not a path."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise TypeError(f"{name} is {_shown(value)}: give a path, as a string or a Path")


_CHECKS = {
    "buffers_only": check_flag,
    "check_fn": check_predicate,
    "checkpoint": check_checkpoint,
    "directory": check_path,
    "dtype": check_dtype,
    "exchange": check_flag,
    "from_rank": check_rank,
    "progress": check_flag,
    "strict": check_flag,
    "threads": check_threads,
}
_MAY_BE_NONE = {"check_fn", "checkpoint", "dtype", "from_rank", "progress", "threads"}


def check_arguments(**arguments: object) -> None:
    """Refuse arguments of the wrong type. Parameters of one name are checked alike everywhere.

    Raises:
        TypeError, ValueError: naming the first wrong argument.
    """
    for name, value in arguments.items():
        if value is not None or name not in _MAY_BE_NONE:
            _CHECKS[name](value, name)


def _shown(value: object) -> str:
    """The text of a value in a message: its repr if that is short, else its type."""
    text = repr(value) if isinstance(value, (str, int, float, torch.device, torch.dtype)) else ""
    return text if 0 < len(text) <= 60 else f"of type {type(value).__name__}"
