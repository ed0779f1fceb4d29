"""Builds a target without its weights, and measures the cost.

Input: a Target, a dtype, a device. Output: the module, all of whose tensors are fake, and the time
and memory that building took. Invariant: torch's default dtype and device are restored.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchfake._torch import backends
from torchfake.deferred import deferred_mode
from torchfake.errors import TargetError
from torchfake.fake import fake_mode
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.targets.options import num_cuda_devices
from torchfake.inspect.targets.target import Target


@dataclass(frozen=True)
class Built:
    """A model without data, and the cost of building it."""

    module: nn.Module
    seconds: float
    peak_rss_bytes: int | None  # of the process so far; None if the platform does not report it
    peak_rss_increase_bytes: int | None  # the increase of that peak by building


def build(
    target: Target,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    deferred: bool = False,
) -> Built:
    """Build the model of `target` inside :func:`torchfake.fake_mode`.

    Args:
        target: the target to build.
        dtype: torch's default dtype while building, and the dtype of all floating point tensors of
            the result. By default the dtype of the target's config, if it has one, as the default
            dtype only, which is what ``from_pretrained`` does.
        device: torch's default device while building. No GPU is needed for ``cuda``.
        deferred: build inside :func:`torchfake.deferred_mode` instead.

    Raises:
        TargetError: if the constructor raises, or returns something other than a module.
        DeviceError: if fakes cannot be on `device`.
    """
    device = device or torch.device("cpu")
    mode = (deferred_mode if deferred else fake_mode)(fake_cuda=num_cuda_devices(device))
    peak_before = _peak_rss_bytes()
    start = time.perf_counter()
    try:
        with mode, device:
            module = construct(target, dtype)
            if dtype is not None and isinstance(module, nn.Module):
                module = module.to(dtype)
    except (Exception, SystemExit) as error:  # sys.exit in a constructor is a failure too
        raise TargetError(f"{target.name} could not be built: {one_line(error)}") from error
    seconds = time.perf_counter() - start
    if not isinstance(module, nn.Module):
        raise TargetError(
            f"{target.name} returned an object of type {type(module).__name__}, not a "
            "torch.nn.Module"
        )
    peak = _peak_rss_bytes()
    increase = None if peak is None or peak_before is None else peak - peak_before
    return Built(module, seconds, peak, increase)


def construct(target: Target, dtype: torch.dtype | None = None) -> Any:
    """Call the constructor of a target in the active mode, with `dtype` as torch's default dtype;
    by default the dtype that the target's config names.
    """
    with _default_dtype(dtype or target.dtype):
        return target.construct()


def _default_dtype(dtype: torch.dtype | None) -> Any:
    # Constructors compute in the default dtype, and 8-bit floats support hardly any operation.
    if dtype is None or dtype.itemsize < 2:
        return contextlib.nullcontext()
    return backends.default_dtype(dtype)


def _peak_rss_bytes() -> int | None:
    """The peak resident memory of the process; None if the platform does not report it.

    On Linux /proc is read, because getrusage there includes the peak of the parent process.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
