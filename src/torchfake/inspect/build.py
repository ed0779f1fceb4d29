"""Building a target without its weights, and what that cost.

Enters: a Target, a dtype, a device. Leaves: the module, all fake, and the cost of making it.
Invariant: torch's default dtype and device are afterwards what they were.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from torchfake._device import MAX_CUDA_DEVICES
from torchfake.deferred import deferred_mode
from torchfake.errors import DeviceError, TargetError
from torchfake.fake import fake_mode
from torchfake.inspect.overrides import did_you_mean, one_line
from torchfake.inspect.targets import Target

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


@dataclass(frozen=True)
class Built:
    """A model without data and the cost of building it."""

    module: nn.Module
    seconds: float
    peak_rss_bytes: int | None  # of the process so far; None where the platform does not say
    peak_rss_increase_bytes: int | None  # by how much building raised it


def build(
    target: Target,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    deferred: bool = False,
) -> Built:
    """Build the model of `target` inside :func:`torchfake.fake_mode`.

    Args:
        target: what to build.
        dtype: torch's default dtype meanwhile, and the dtype of all floating point tensors of the
            result. Not given: the dtype of the target's config, where it has one, as the default
            dtype only, which is what ``from_pretrained`` does.
        device: torch's default device meanwhile. No GPU is needed for ``cuda``.
        deferred: build it inside :func:`torchfake.deferred_mode`.

    Raises:
        TargetError: if the constructor raises, or makes something other than a module.
        DeviceError: if fakes cannot be on `device`.
    """
    device = device or torch.device("cpu")
    mode = (deferred_mode if deferred else fake_mode)(fake_cuda=num_cuda(device))
    peak_before = _peak_rss_bytes()
    start = time.perf_counter()
    try:
        with mode, device:
            with _default_dtype(dtype or target.dtype):
                module = target.construct()
            if dtype is not None and isinstance(module, nn.Module):
                module = module.to(dtype)
    except (Exception, SystemExit) as error:  # sys.exit in a constructor is a failure too
        raise TargetError(f"{target.name} could not be built: {one_line(error)}") from error
    seconds = time.perf_counter() - start
    if not isinstance(module, nn.Module):
        raise TargetError(f"{target.name} made a {type(module).__name__}, not a torch.nn.Module")
    peak = _peak_rss_bytes()
    increase = None if peak is None or peak_before is None else peak - peak_before
    return Built(module, seconds, peak, increase)


def dtype_named(name: str) -> torch.dtype:
    """A floating point dtype by its name in torch, or by a short one.

    Raises:
        TargetError: if there is none of that name.

    >>> dtype_named("bf16"), dtype_named("torch.float16")
    (torch.bfloat16, torch.float16)
    """
    plain = name.removeprefix("torch.")
    dtype = _SHORT_DTYPES.get(plain) or getattr(torch, plain, None)
    if not isinstance(dtype, torch.dtype):
        known = [n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)]
        hint = did_you_mean(plain, [*_SHORT_DTYPES, *known]) or "; try float32, bf16 or fp16"
        raise TargetError(f"there is no dtype {name!r}{hint}")
    if not dtype.is_floating_point:
        raise TargetError(f"a model cannot be built as {name}: give a floating point dtype")
    return dtype


def device_named(name: str) -> torch.device:
    """A device that fakes can be on, by name.

    Raises:
        DeviceError: if there is none of that name, or fakes cannot be on it.

    >>> device_named("cuda:1")
    device(type='cuda', index=1)
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"there is no device {name!r}; give cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"fakes cannot be on {name!r}; give cpu, cuda or cuda:N")
    # torch.device keeps one signed byte of an index: cuda:300 is cuda:44
    if str(device) != name or (device.index or 0) >= MAX_CUDA_DEVICES:
        last = MAX_CUDA_DEVICES - 1
        raise DeviceError(f"there is no device {name!r}; fakes are on cpu and cuda:0 to {last}")
    return device


def num_cuda(device: torch.device) -> int:
    """How many CUDA devices a mode has that has this one."""
    return (device.index or 0) + 1 if device.type == "cuda" else 0


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    # Constructors compute with the default dtype, and 8 bit floats have next to no arithmetic.
    if dtype is None or dtype.itemsize < 2:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _peak_rss_bytes() -> int | None:
    """The most memory this process has held so far, or None where nobody says.

    Linux is asked through /proc: its getrusage starts from the peak of the process that started
    this one.
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
