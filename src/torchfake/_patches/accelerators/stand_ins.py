"""Stand-ins for classes of torch that C++ constructs, and for modules that torch does not have.

Input: the originals. Output: classes that construct objects of the mode's fake machine, and else
behave as the originals; modules for device types without one. Invariant: outside a mode, and on
other threads, a stand-in constructs what the original would; such a module has no attributes.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from torchfake._core import devices
from torchfake._patches.accelerators import machine as of_any
from torchfake._patches.accelerators import streams
from torchfake._patches.accelerators.class_stand_ins import never, stand_in
from torchfake._patches.accelerators.cuda import TENSOR_TYPES
from torchfake._patches.accelerators.tables import Answer, fake_machine
from torchfake._patches.patch import Patch
from torchfake._random.fake_generators import FakeGenerator

_Make = Callable[..., Any]
_device = torch.device


_USERS: tuple[Any, ...] = (torch, torch.mtia)
"""Modules that may have the C++ classes of streams and events, without classes in Python."""


_NO_DEVICE: Any = object()


def _only_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The one argument of a call, if it is a device; other calls are torch's to judge."""
    given = args if args else [kwargs.get("device", _NO_DEVICE)]
    return given[0] if len(args) + len(kwargs) == 1 else _NO_DEVICE


def _new_device(original: Any, *args: Any, **kwargs: Any) -> torch.device:
    """``torch.device``: a number is a device of the fake machine; C++ would look for a real one."""
    given = _only_device(args, kwargs)
    if type(given) is int and devices.names_any_device():
        return _device(devices.accelerator_type(), given)
    return original(*args, **kwargs)  # type: ignore[no-any-return]


def _new_generator(original: Any, *args: Any, **kwargs: Any) -> torch.Generator:
    given = _only_device(args, kwargs)
    if given is not _NO_DEVICE and devices.names_any_device():
        target = _device(devices.accelerator_type(), given) if type(given) is int else given
        target = _device(target)
        if target.type not in ("cpu", "meta"):
            return FakeGenerator(devices.resolve(target))
    return original(*args, **kwargs)  # type: ignore[no-any-return]


def _new_of_device(
    answer: Answer, original: Any, device: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """``torch.Stream`` and ``torch.Event``, of any accelerator."""
    machine = fake_machine(None)
    if machine is not None:
        given = torch.device(machine.device_type) if device is None else device
        kind = machine.device_type if isinstance(given, int) else torch.device(given).type
        if kind == machine.device_type:
            return answer(machine, given, *args, **kwargs)
    given_device = {} if device is None else {"device": device}
    return original(*args, **given_device, **kwargs)


def _new_tensor(answer: Answer, original: Any, *args: Any, **kwargs: Any) -> Any:
    machine = fake_machine("cuda")
    return original(*args, **kwargs) if machine is None else answer(machine, *args, **kwargs)


def _is_of_type(name: str, instance: Any) -> bool:
    is_fake = hasattr(instance, "_fake_meta")
    return is_fake and bool(instance.type() == f"torch.cuda.{name}")


def _patch(owner: Any, name: str, make: _Make, is_instance: Any = never) -> Patch:
    return Patch(owner, name, functools.partial(stand_in, make, is_instance))


def _patches_of(name: str, cls: Any, make: _Make, is_instance: Any) -> list[Patch]:
    users = [owner for owner in _USERS if getattr(owner, name) is cls]
    return [_patch(owner, name, make, is_instance) for owner in users]


_new_stream = functools.partial(_new_of_device, streams.new_stream)
_new_event = functools.partial(_new_of_device, streams.new_event)

CLASSES = [
    _patch(torch, "Generator", _new_generator),
    *_patches_of("Stream", torch.Stream, _new_stream, streams.is_stream),
    *_patches_of("Event", torch.Event, _new_event, streams.is_event),
]
"""The stand-ins for any fake machine."""

DEVICE = _patch(torch, "device", _new_device)
"""The stand-in for modes in which C++ would take a number for another device than the mode's."""

CUDA_TENSORS = [
    _patch(
        torch.cuda,
        name,
        functools.partial(_new_tensor, answer),
        functools.partial(_is_of_type, name),
    )
    for name, answer in TENSOR_TYPES.items()
    if hasattr(torch.cuda, name)
]


class _Module(types.ModuleType):
    """The module of a device type that torch knows, but whose extension is not installed."""

    def __init__(self, device_type: str) -> None:
        super().__init__(f"torch.{device_type}")
        self._device_type = device_type

    def __getattr__(self, name: str) -> Any:
        machine = fake_machine(self.__dict__["_device_type"])
        answer = _OF_MODULES.get(name)
        if machine is None or answer is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name == "default_generators":
            return answer
        return functools.partial(answer, machine)


class _DeviceContext:
    """``with torch.hpu.device(1)``: a context with another current device."""

    def __init__(self, machine: Any, device: Any) -> None:
        self._machine, self._index = machine, of_any.device_index(machine, device)
        self._before = machine.current

    def __enter__(self) -> None:
        self._before, self._machine.current = self._machine.current, self._index

    def __exit__(self, *error: Any) -> None:
        self._machine.current = self._before


_OF_MODULES: dict[str, Any] = {
    **of_any.DEVICES,
    **of_any.MEMORY,
    **of_any.SEEDS,
    **streams.STREAMS,
    "device": _DeviceContext,
    "stream": lambda machine, stream: stream,
    "get_amp_supported_dtype": lambda machine: [torch.bfloat16, torch.float16],
    "is_bf16_supported": of_any.constant(True),
    "is_autocast_enabled": lambda machine: torch.is_autocast_enabled(machine.device_type),
}


@functools.cache
def _module(device_type: str) -> _Module:
    return _Module(device_type)


def missing_module(device_type: str) -> list[Patch]:
    """The patch that adds a module ``torch.<device_type>``, if torch has none."""
    if hasattr(torch, device_type):
        return []
    return [Patch(torch, device_type, lambda original: _module(device_type))]
