"""Parses options given as text: ``key=value`` overrides, dtypes and devices.

Input: strings of the command line. Output: a flat dict of values, whose nested keys have dots; a
dtype; a device. Invariant: an unknown name is refused with an error that names the closest known
names.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from typing import Any

import torch

from torchfake.errors import DeviceError, TargetError, did_you_mean
from torchfake.observe import MAX_DEVICES

_SHORT_DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "fp16": torch.float16,
    "f32": torch.float32,
    "fp32": torch.float32,
    "f64": torch.float64,
    "fp64": torch.float64,
    "fp8": torch.float8_e4m3fn,
}


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse ``key=value`` strings to a dict; values are JSON, else Python literals, else strings.

    Args:
        pairs: strings ``key=value``; of two equal keys the last is used.

    Raises:
        TargetError: if a pair has no key or no ``=``.

    >>> parse_overrides(["d_model=1_024", "text_config.tie=false", "act=gelu"])
    {'d_model': 1024, 'text_config.tie': False, 'act': 'gelu'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise TargetError(f"--config {pair!r} is not of the form key=value")
        values[key.strip()] = parse_value(text.strip())
    return values


def parse_value(text: str) -> Any:
    """Parse one value: JSON, else a Python literal, else the string itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def dtype_named(name: str) -> torch.dtype:
    """The floating point dtype with a name of torch, such as "float16", or a short one, "fp16".

    Raises:
        TargetError: if there is no floating point dtype of that name.

    >>> dtype_named("bf16"), dtype_named("torch.float16")
    (torch.bfloat16, torch.float16)
    """
    dtype = any_dtype_named(name)
    if not dtype.is_floating_point:
        raise TargetError(
            f"a model cannot be built as {name}: give a floating point dtype; "
            "on the command line --weights int4, int8 or nf4 quantizes the weights"
        )
    return dtype


def any_dtype_named(name: str) -> torch.dtype:
    """The dtype of any kind with a name of torch, or a short one.

    Raises:
        TargetError: if there is no dtype of that name.
    """
    plain = name.removeprefix("torch.")
    dtype = _SHORT_DTYPES.get(plain) or getattr(torch, plain, None)
    if not isinstance(dtype, torch.dtype):
        known = [n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)]
        hint = did_you_mean(plain, [*_SHORT_DTYPES, *known]) or "; try float32, bf16 or fp16"
        raise TargetError(f"there is no dtype {name!r}{hint}")
    return dtype


def device_named(name: str) -> torch.device:
    """The device with a name, on which fakes can be.

    Raises:
        DeviceError: if there is no device of that name, or fakes cannot be on it.

    >>> device_named("cuda:1")
    device(type='cuda', index=1)
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"there is no device {name!r}; give cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"fakes cannot be on {name!r}; give cpu, cuda or cuda:N")
    # torch.device stores an index in one signed byte: cuda:300 becomes cuda:44
    if str(device) != name or (device.index or 0) >= MAX_DEVICES:
        last = MAX_DEVICES - 1
        raise DeviceError(f"there is no device {name!r}; fakes are on cpu and cuda:0 to {last}")
    return device


def num_cuda_devices(device: torch.device) -> int:
    """The number of CUDA devices that a fake mode needs so that `device` exists."""
    return (device.index or 0) + 1 if device.type == "cuda" else 0
