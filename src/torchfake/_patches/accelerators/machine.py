"""Answers for any fake machine: about its devices, their memory, their seeds.

Input: the machine of a mode, and the arguments of a function of torch. Output: the result of that
function. Invariant: only the machine and the fake generators are changed; questions that only CUDA
profiles answer are refused for other devices, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch

from torchfake._core import devices
from torchfake._core.gpu_profiles import ROCM, AlikeGpus, CudaProfile
from torchfake._core.modes import FakeAccelerator
from torchfake._patches.accelerators.tables import each
from torchfake._random import fake_generators
from torchfake.errors import UnsupportedOpError


def device_index(machine: FakeAccelerator, device: Any = None) -> int:
    """The index of `device`, checked; that of the current device for None and negative numbers."""
    if device is None or (isinstance(device, int) and device < 0):
        return machine.current
    if isinstance(device, int):
        device = torch.device(machine.device_type, device)
    target = devices.resolve(device)
    if target.type != machine.device_type:
        raise ValueError(f"Expected a {machine.device_type} device, but got: {device}")
    return target.index or 0


def device_at(machine: FakeAccelerator, device: Any = None) -> torch.device:
    """The device that `device` names, with its index."""
    return torch.device(machine.device_type, device_index(machine, device))


def do_nothing(machine: FakeAccelerator, *args: Any, **kwargs: Any) -> None:
    """The answer of functions that act on a device: there is no device."""


def constant(value: Any) -> Any:
    """An answer that always returns `value`."""
    return lambda machine, *args, **kwargs: value


def call_now(machine: FakeAccelerator, callable: Any, **_options: Any) -> None:
    """``_lazy_call``, which waits for the driver: call the function at once."""
    callable()


# Devices.


def current_device(machine: FakeAccelerator) -> int:
    return machine.current


def exchange_device(machine: FakeAccelerator, device: int) -> int:
    previous = machine.current
    if device >= 0:
        machine.current = device_index(machine, device)
    return previous


def set_device(machine: FakeAccelerator, device: Any) -> None:
    machine.current = device_index(machine, device)


def gpu_of(machine: FakeAccelerator, question: str) -> AlikeGpus:
    """The GPU model of the devices, to be asked.

    Raises:
        UnsupportedOpError: if the devices have no profile.
    """
    if machine.gpu is None:
        raise UnsupportedOpError(
            f"{question} is not known for fake {machine.device_type} devices: there are profiles "
            "of CUDA devices alone (torchfake.profiles())"
        )
    return machine.gpu


_PROPERTIES: dict[str, Callable[[CudaProfile], Any]] = {
    **{name: attrgetter(name) for name in ("name", "major", "minor", "total_memory")},
    "multi_processor_count": attrgetter("multi_processor_count"),
    "warp_size": lambda profile: 64 if profile.backend == ROCM else 32,
    "regs_per_multiprocessor": lambda _: 65536,  # of all capabilities since 3.5
    "shared_memory_per_block": lambda _: 49152,  # without opt-in
    "is_integrated": lambda _: False,
    "is_multi_gpu_board": lambda _: False,
}


class DeviceProperties:
    """``torch.cuda.get_device_properties``: each property is asked of the GPU when it is read."""

    def __init__(self, gpu: AlikeGpus) -> None:
        self._gpu = gpu

    def __getattr__(self, name: str) -> Any:
        if name not in _PROPERTIES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._gpu.answer(_PROPERTIES[name])

    def __dir__(self) -> list[str]:
        return [*_PROPERTIES]

    def __repr__(self) -> str:
        return f"DeviceProperties({', '.join(f'{n}={getattr(self, n)!r}' for n in _PROPERTIES)})"


def device_properties(machine: FakeAccelerator, device: Any = None) -> Any:
    device_index(machine, device)  # raises as torch does if out of range
    if machine.gpu is None:
        return SimpleNamespace(name=device_name(machine, device))
    return DeviceProperties(machine.gpu)


def device_name(machine: FakeAccelerator, device: Any = None) -> str:
    device_index(machine, device)
    if machine.gpu is not None:
        return machine.gpu.answer(_PROPERTIES["name"])  # type: ignore[no-any-return]
    return f"fake {devices.kind_of(machine.device_type).name}"


def device_capability(machine: FakeAccelerator, device: Any = None) -> tuple[int, int]:
    device_index(machine, device)
    return gpu_of(machine, "the capability").answer(lambda profile: (profile.major, profile.minor))


def can_access_peer(machine: FakeAccelerator, device: Any, peer_device: Any) -> bool:
    return device_index(machine, device) != device_index(machine, peer_device)


# Memory: no allocation is counted.


def no_bytes(machine: FakeAccelerator, device: Any = None) -> int:
    device_index(machine, device)
    return 0


def mem_get_info(machine: FakeAccelerator, device: Any = None) -> tuple[int, int]:
    device_index(machine, device)
    total = total_memory(machine)
    return total, total


def total_memory(machine: FakeAccelerator) -> int:
    return gpu_of(machine, "the memory").answer(lambda profile: profile.total_memory)


def memory_fraction(machine: FakeAccelerator, device: Any = None) -> float:
    device_index(machine, device)
    return 1.0


def set_memory_fraction(machine: FakeAccelerator, fraction: float, device: Any = None) -> None:
    device_index(machine, device)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")


# Seeds.


class DefaultGenerators:
    """``torch.cuda.default_generators``: the fake generators in a mode that has fake CUDA."""

    def __init__(self, device_type: str, machine: Any, original: Any) -> None:
        self._original, self._device_type, self._machine = original, device_type, machine

    def _all(self) -> Any:
        machine = self._machine(self._device_type)
        if machine is None:
            return self._original
        return tuple(default_generator(machine, i) for i in range(machine.num_devices))

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Any:
        return iter(self._all())

    def __eq__(self, other: Any) -> bool:
        return bool(self._all() == other)

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


def default_generator(machine: FakeAccelerator, device: Any = None) -> Any:
    return fake_generators.default_generator(device_at(machine, device))


def _generators(machine: FakeAccelerator) -> list[Any]:
    return [default_generator(machine, index) for index in range(machine.num_devices)]


def get_rng_state(machine: FakeAccelerator, device: Any = None) -> torch.Tensor:
    return default_generator(machine, device).get_state()  # type: ignore[no-any-return]


def set_rng_state(machine: FakeAccelerator, new_state: torch.Tensor, device: Any = None) -> None:
    default_generator(machine, device).set_state(new_state)


def get_rng_state_all(machine: FakeAccelerator) -> list[torch.Tensor]:
    return [generator.get_state() for generator in _generators(machine)]


def set_rng_state_all(machine: FakeAccelerator, new_states: Any) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(machine, state, index)


def manual_seed(machine: FakeAccelerator, seed: int) -> None:
    default_generator(machine).manual_seed(int(seed))


def manual_seed_all(machine: FakeAccelerator, seed: int) -> None:
    for generator in _generators(machine):
        generator.manual_seed(int(seed))


def seed_current(machine: FakeAccelerator) -> None:
    default_generator(machine).seed()


def seed_all(machine: FakeAccelerator) -> None:
    seed = default_generator(machine, 0).seed()
    manual_seed_all(machine, seed)


def initial_seed(machine: FakeAccelerator, device: Any = None) -> int:
    return int(default_generator(machine, device).initial_seed())


DEVICES: dict[str, Any] = {
    **each("is_available is_initialized", constant(True)),
    **each("init _lazy_init synchronize", do_nothing),
    "_lazy_call": call_now,
    "_is_in_bad_fork": constant(False),
    "device_count": lambda machine: machine.num_devices,
    "current_device": current_device,
    "set_device": set_device,
    **each("_exchange_device _maybe_exchange_device", exchange_device),
    "get_device_properties": device_properties,
    "get_device_name": device_name,
    "get_device_capability": device_capability,
    "can_device_access_peer": can_access_peer,
}

MEMORY: dict[str, Any] = {
    **each("memory_allocated max_memory_allocated memory_reserved max_memory_reserved", no_bytes),
    **each("device_memory_used memory_usage utilization", no_bytes),
    **each("empty_cache reset_peak_memory_stats reset_accumulated_memory_stats", do_nothing),
    "mem_get_info": mem_get_info,
    "get_per_process_memory_fraction": memory_fraction,
    "set_per_process_memory_fraction": set_memory_fraction,
}

SEEDS: dict[str, Any] = {
    "get_rng_state": get_rng_state,
    "set_rng_state": set_rng_state,
    "get_rng_state_all": get_rng_state_all,
    "set_rng_state_all": set_rng_state_all,
    "manual_seed": manual_seed,
    "manual_seed_all": manual_seed_all,
    "seed": seed_current,
    "seed_all": seed_all,
    "initial_seed": initial_seed,
}
