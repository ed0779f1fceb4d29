"""Streams and events of a fake machine: all work on them is always done.

Input: the machine, and the arguments of a constructor or a function of torch. Output: objects that
answer as an idle stream does. Invariant: ``isinstance`` takes the objects for real streams and
events, and no driver is called.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from torchfake._core import modes
from torchfake._core.modes import FakeAccelerator
from torchfake._patches.accelerators.machine import device_at, device_index

_ids = itertools.count(1)  # 0 is the default stream

_DEVICE_TYPES = {"cuda": 1, "xla": 9, "xpu": 12, "mps": 13, "hpu": 15, "mtia": 19}
"""Numbers of device types: c10/core/DeviceType.h. A privateuse1 backend has 20."""


_OF_ANY = {"Stream": torch.Stream, "Event": torch.Event}


def _class_of(device_type: str, name: str) -> type:
    """The class of torch for streams or events of a device type."""
    cls: Any = getattr(getattr(torch, device_type, None), name, None)
    cls = getattr(cls, "original", cls)
    return cls if isinstance(cls, type) else _OF_ANY[name]


class FakeStream:
    """A stream of the fake machine: all work on it is always done, and it never captures."""

    def __init__(self, device: torch.device, stream_id: int = 0, priority: int = 0) -> None:
        self.device, self.stream_id, self.priority = device, stream_id, priority
        self._entered: list[Any] = []

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For ``isinstance``: the class of a real stream."""
        return _class_of(self.device.type, "Stream")

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    sycl_queue = native_handle = cuda_stream

    @property
    def device_type(self) -> int:
        return _DEVICE_TYPES.get(self.device.type, 20)

    @property
    def device_index(self) -> int:
        return self.device.index or 0

    def __eq__(self, other: Any) -> bool:
        return type(other) is FakeStream and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"<fake stream {self.stream_id} on {self.device}>"

    def _key(self) -> tuple[torch.device, int]:
        return self.device, self.stream_id

    def __enter__(self) -> FakeStream:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and accelerator.type == self.device.type:
            self._entered.append(torch.accelerator.current_stream(self.device))
            torch.accelerator.set_stream(self)  # type: ignore[arg-type]
        return self

    def __exit__(self, *error: Any) -> None:
        if self._entered:
            torch.accelerator.set_stream(self._entered.pop())

    def is_capturing(self) -> bool:
        return False

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Any) -> None:
        _tell("wait_stream", self, stream)

    def wait_event(self, event: Any) -> None:
        _tell("wait", self, event)

    def record_event(self, event: Any = None) -> Any:
        event = FakeEvent(self.device.type) if event is None else event
        event.device = self.device
        _tell("record", event, self)
        return event


class FakeEvent:
    """An event on the fake machine: it has always happened already."""

    cuda_event = sycl_event = event_id = 0

    device: torch.device | None = None  # that of the stream that has recorded it

    def __init__(self, device_type: str) -> None:
        self._type = device_type

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return _class_of(self._type, "Event")

    def record(self, stream: Any = None) -> None:
        state = modes.current()
        if stream is not None:
            self.device = stream.device
        elif state is not None and state.accelerator is not None:
            self.device = current_stream(state.accelerator).device
        _tell("record", self, stream)

    def wait(self, stream: Any = None) -> None:
        _tell("wait", stream, self)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any) -> float:
        return 0.0


def _tell(what: str, *args: Any) -> None:
    """Report work on streams to the recorder of its order, if there is one."""
    state = modes.current()
    if state is not None and state.accelerator is not None:
        order = state.accelerator.order
        if order is not None:
            getattr(order, what)(*args)


def is_stream(instance: Any) -> bool:
    """Whether `instance` is a fake stream, of any device."""
    return type(instance) is FakeStream


def is_event(instance: Any) -> bool:
    """Whether `instance` is a fake event, of any device."""
    return type(instance) is FakeEvent


def default_stream(machine: FakeAccelerator, device: Any = None) -> FakeStream:
    return FakeStream(device_at(machine, device))


def current_stream(machine: FakeAccelerator, device: Any = None) -> Any:
    chosen = machine.streams.get(device_index(machine, device))
    return default_stream(machine, device) if chosen is None else chosen


def set_stream(machine: FakeAccelerator, stream: Any) -> None:
    """Make `stream` current on its device, and its device the current one, as torch does."""
    if stream is not None:
        machine.streams[stream.device_index] = stream
        machine.current = stream.device_index


def new_stream(
    machine: FakeAccelerator, device: Any = None, priority: int = 0, **options: Any
) -> FakeStream:
    stream_id = options.get("stream_id")
    if stream_id is not None:
        where = torch.device(machine.device_type, options.get("device_index", machine.current))
        return FakeStream(where, stream_id, priority)
    return FakeStream(device_at(machine, device), next(_ids), priority)


def new_event(machine: FakeAccelerator, *_flags: Any, **_options: Any) -> FakeEvent:
    return FakeEvent(machine.device_type)


STREAMS: dict[str, Any] = {
    "Stream": new_stream,
    "Event": new_event,
    "current_stream": current_stream,
    "default_stream": default_stream,
    "set_stream": set_stream,
    "is_current_stream_capturing": lambda machine: False,
}
