"""What ``torch.cuda`` answers inside a mode with fake CUDA.

Enters: the originals. Leaves: versions that describe the mode's machine. Invariant: on a thread
whose mode has no fake CUDA, each is the original; none of them starts CUDA.
"""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import torch

from torchfake import _device, _state
from torchfake._patches import Patch
from torchfake._state import FakeCuda


def _index(machine: FakeCuda, device: Any) -> int:
    if device is None:
        return machine.current
    if isinstance(device, int):
        return device if device >= 0 else machine.current
    index = _device.resolve(device).index
    return machine.current if index is None else index


def _properties(machine: FakeCuda, device: Any = None) -> Any:
    _device.resolve(_index(machine, device))  # an ordinal out of range is refused as torch does
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


def _exchange(machine: FakeCuda, device: int) -> int:
    previous = machine.current
    if device >= 0:
        machine.current = _device.resolve(device).index or 0
    return previous


def _set_device(machine: FakeCuda, device: Any) -> None:
    _exchange(machine, _index(machine, device))


def _mem_get_info(machine: FakeCuda, device: Any = None) -> tuple[int, int]:
    total = _properties(machine, device).total_memory
    return total, total


def _rng_state(machine: FakeCuda, device: Any = "cuda") -> torch.Tensor:
    """A CUDA generator's state is 16 bytes: seed and offset."""
    return torch.zeros(16, dtype=torch.uint8, device="cpu")


def _supports_bf16(machine: FakeCuda, including_emulation: bool = True) -> bool:
    return including_emulation or _capability(machine)[0] >= 8


_numbers = itertools.count(1)  # of streams; 0 is the default one


class _Stream:
    """A stream of a machine that is not there: always done, never capturing."""

    priority = 0
    device_type = 1  # CUDA, by c10::DeviceType

    def __init__(self, device: torch.device, number: int = 0) -> None:
        self.device, self.cuda_stream = device, number

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What ``isinstance`` is told, as it is of a real one."""
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
    """A moment on such a machine: it has passed."""

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
    return _Stream(_device.resolve(_index(machine, device)))


def _new_stream(
    machine: FakeCuda, cls: type, device: Any = None, priority: int = 0, **_options: Any
) -> _Stream:
    return _Stream(_stream(machine, device).device, next(_numbers))


def _new_event(machine: FakeCuda, cls: type, *_flags: Any, **_options: Any) -> _Event:
    return _Event()


def _nothing(machine: FakeCuda, *args: Any, **kwargs: Any) -> None:
    """For calls that act on a device: there is none to act on."""


_ANSWERS: dict[str, Any] = {
    "is_available": lambda machine: True,
    "device_count": lambda machine: machine.num_devices,
    "current_device": lambda machine: machine.current,
    "set_device": _set_device,
    "_exchange_device": _exchange,
    "_maybe_exchange_device": _exchange,
    "get_device_properties": _properties,
    "get_device_capability": _capability,
    "get_device_name": lambda machine, device=None: _properties(machine, device).name,
    "mem_get_info": _mem_get_info,
    "is_bf16_supported": _supports_bf16,
    "get_rng_state": _rng_state,
    "set_rng_state": _nothing,
    "current_stream": _stream,
    "default_stream": _stream,
    "set_stream": _nothing,
    "is_current_stream_capturing": lambda machine: False,
    "synchronize": _nothing,
    "empty_cache": _nothing,
    "reset_peak_memory_stats": _nothing,
    "memory_allocated": lambda machine, device=None: 0,
    "max_memory_allocated": lambda machine, device=None: 0,
    "memory_reserved": lambda machine, device=None: 0,
    "max_memory_reserved": lambda machine, device=None: 0,
}


_ACCELERATOR_ANSWERS: dict[str, Any] = {
    "current_accelerator": lambda machine, check_available=False: torch.device("cuda"),
    "is_available": lambda machine: True,
    "device_count": lambda machine: machine.num_devices,
    "current_device_index": lambda machine: machine.current,
    "current_device_idx": lambda machine: machine.current,
    "set_device_index": _set_device,
    "set_device_idx": _set_device,
    "current_stream": _stream,
    "synchronize": _nothing,
}
"""``torch.accelerator``: the same machine by its other name. (Optimizers ask it.)"""


def _answering(answer: Any) -> Any:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            state = _state.current()
            if state is None or state.cuda is None:
                return original(*args, **kwargs)
            return answer(state.cuda, *args, **kwargs)

        return replacement

    return make


def _making(answer: Any) -> Any:
    """The same for a class's ``__new__``: what it makes is not of the class."""

    def make(original: Any) -> Any:
        return staticmethod(_answering(answer)(original.__func__))

    return make


PATCHES = [
    Patch(owner, name, _answering(answer))
    for owner, answers in ((torch.cuda, _ANSWERS), (torch.accelerator, _ACCELERATOR_ANSWERS))
    for name, answer in answers.items()
    if hasattr(owner, name)
] + [
    Patch(torch.cuda.Stream, "__new__", _making(_new_stream)),
    Patch(torch.cuda.Event, "__new__", _making(_new_event)),
]
