"""``torch.cuda`` and ``torch.accelerator`` inside a mode with fake CUDA.

Input: the originals. Output: versions that describe the mode's fake machine. Invariant: on a thread
whose mode has no fake CUDA, each is the original; none of them starts CUDA. Called by:
``_patches/install``.
"""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import torch

from torchfake._core import devices, modes
from torchfake._core.modes import FakeCuda
from torchfake._patches.patch import Patch


def _device_index(machine: FakeCuda, device: Any) -> int:
    if device is None:
        return machine.current
    if isinstance(device, int):
        return device if device >= 0 else machine.current
    index = devices.resolve(device).index
    return machine.current if index is None else index


def _properties(machine: FakeCuda, device: Any = None) -> Any:
    devices.resolve(_device_index(machine, device))  # raises as torch does if out of range
    profile = machine.profile
    return SimpleNamespace(
        name=profile.name,
        major=profile.major,
        minor=profile.minor,
        total_memory=profile.total_memory,
        multi_processor_count=profile.multi_processor_count,
        warp_size=32,
        is_integrated=False,
        is_multi_gpu_board=False,
    )


def _capability(machine: FakeCuda, device: Any = None) -> tuple[int, int]:
    properties = _properties(machine, device)
    return properties.major, properties.minor


def _exchange_device(machine: FakeCuda, device: int) -> int:
    previous = machine.current
    if device >= 0:
        machine.current = devices.resolve(device).index or 0
    return previous


def _set_device(machine: FakeCuda, device: Any) -> None:
    _exchange_device(machine, _device_index(machine, device))


def _mem_get_info(machine: FakeCuda, device: Any = None) -> tuple[int, int]:
    total = _properties(machine, device).total_memory
    return total, total


def _rng_state(machine: FakeCuda, device: Any = "cuda") -> torch.Tensor:
    """A CUDA generator's state is 16 bytes: seed and offset."""
    return torch.zeros(16, dtype=torch.uint8, device="cpu")


def _supports_bf16(machine: FakeCuda, including_emulation: bool = True) -> bool:
    return including_emulation or _capability(machine)[0] >= 8


_stream_ids = itertools.count(1)  # 0 is the default stream


class _Stream:
    """A stream of the fake machine: all work on it is always done, and it never captures."""

    priority = 0
    device_type = 1  # CUDA, by c10::DeviceType

    def __init__(self, device: torch.device, stream_id: int = 0) -> None:
        self.device, self.cuda_stream = device, stream_id

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For ``isinstance``: the class of a real stream."""
        return torch.cuda.Stream

    @property
    def stream_id(self) -> int:
        return self.cuda_stream

    @property
    def device_index(self) -> int:
        return self.device.index or 0

    def __eq__(self, other: Any) -> bool:
        return type(other) is _Stream and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[torch.device, int]:
        return self.device, self.cuda_stream

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: Any) -> None: ...

    def is_capturing(self) -> bool:
        return False

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return torch.cuda.Event() if event is None else event


class _Event:
    """An event on the fake machine: it has always happened already."""

    cuda_event = 0

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.cuda.Event

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any) -> float:
        return 0.0


def _stream(machine: FakeCuda, device: Any = None) -> _Stream:
    return _Stream(devices.resolve(_device_index(machine, device)))


def _new_stream(
    machine: FakeCuda, cls: type, device: Any = None, priority: int = 0, **_options: Any
) -> _Stream:
    return _Stream(_stream(machine, device).device, next(_stream_ids))


def _new_event(machine: FakeCuda, cls: type, *_flags: Any, **_options: Any) -> _Event:
    return _Event()


def _do_nothing(machine: FakeCuda, *args: Any, **kwargs: Any) -> None:
    """For functions that act on a device: there is none."""


_CUDA_FUNCTIONS: dict[str, Any] = {
    "is_available": lambda machine: True,
    "device_count": lambda machine: machine.num_devices,
    "current_device": lambda machine: machine.current,
    "set_device": _set_device,
    "_exchange_device": _exchange_device,
    "_maybe_exchange_device": _exchange_device,
    "get_device_properties": _properties,
    "get_device_capability": _capability,
    "get_device_name": lambda machine, device=None: _properties(machine, device).name,
    "mem_get_info": _mem_get_info,
    "is_bf16_supported": _supports_bf16,
    "get_rng_state": _rng_state,
    "set_rng_state": _do_nothing,
    "current_stream": _stream,
    "default_stream": _stream,
    "set_stream": _do_nothing,
    "is_current_stream_capturing": lambda machine: False,
    "synchronize": _do_nothing,
    "empty_cache": _do_nothing,
    "reset_peak_memory_stats": _do_nothing,
    "memory_allocated": lambda machine, device=None: 0,
    "max_memory_allocated": lambda machine, device=None: 0,
    "memory_reserved": lambda machine, device=None: 0,
    "max_memory_reserved": lambda machine, device=None: 0,
}


_ACCELERATOR_FUNCTIONS: dict[str, Any] = {
    "current_accelerator": lambda machine, check_available=False: torch.device("cuda"),
    "is_available": lambda machine: True,
    "device_count": lambda machine: machine.num_devices,
    "current_device_index": lambda machine: machine.current,
    "current_device_idx": lambda machine: machine.current,
    "set_device_index": _set_device,
    "set_device_idx": _set_device,
    "current_stream": _stream,
    "synchronize": _do_nothing,
}
"""``torch.accelerator`` describes the same machine. (Optimizers call it.)"""


def _for_fake_cuda(function: Any) -> Any:
    """Makes replacements that call `function` with the mode's machine, or else the original."""

    def make_replacement(original: Any) -> Any:
        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            state = modes.current()
            if state is None or state.cuda is None:
                return original(*args, **kwargs)
            return function(state.cuda, *args, **kwargs)

        return replacement

    return make_replacement


def _for_fake_cuda_class(function: Any) -> Any:
    """The same for the ``__new__`` of a class: what it returns is not of the class."""

    def make_replacement(original: Any) -> Any:
        return staticmethod(_for_fake_cuda(function)(original.__func__))

    return make_replacement


PATCHES = [
    Patch(owner, name, _for_fake_cuda(function))
    for owner, functions in (
        (torch.cuda, _CUDA_FUNCTIONS),
        (torch.accelerator, _ACCELERATOR_FUNCTIONS),
    )
    for name, function in functions.items()
    if hasattr(owner, name)
] + [
    Patch(torch.cuda.Stream, "__new__", _for_fake_cuda_class(_new_stream)),
    Patch(torch.cuda.Event, "__new__", _for_fake_cuda_class(_new_event)),
]
