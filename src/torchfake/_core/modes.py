"""Thread-local state: the modes that are on, and the state of each.

Input: modes, entered and left by ``fake`` and ``deferred``. Output: the innermost mode of the
running thread. Invariant: this file has all ambient state of torchfake, which is thread-local
except for :data:`recording` and :data:`on_any_thread`.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from torchfake._core.gpu_profiles import AlikeGpus
from torchfake._torch.contexts import Setting

PLAIN, DEFERRED, DEFERRED_AS_META = range(3)
"""Marks of modes and of the fakes made in them. PLAIN: operations are not recorded. DEFERRED: they
are recorded. DEFERRED_AS_META: they are recorded, and the fake reports the device ``meta``."""


@dataclass(slots=True)
class FakeAccelerator:
    """The devices that a mode reports, all of one type, which the machine need not have."""

    device_type: str
    num_devices: int
    gpu: AlikeGpus | None = None  # answers for the GPU model, if these are CUDA devices
    current: int = 0  # index of the current device
    streams: dict[int, Any] = field(default_factory=dict)  # the current stream of each device
    order: Any = None  # told of events that streams record or wait for: set by torchfake.observe

    def unused(self) -> FakeAccelerator:
        """A copy without current device and streams, for another entry of the mode."""
        return FakeAccelerator(self.device_type, self.num_devices, self.gpu)


@dataclass(slots=True, eq=False)
class ModeState:
    """The state of one ``with fake_mode()``, until it is left."""

    accelerator: FakeAccelerator | None = None
    is_loading: bool = False  # inside torch.load, which makes storages without their bytes
    mark: int = 0  # of the metadata of new fakes: see torchfake._core.metadata
    answerers: tuple[
        Any, ...
    ] = ()  # of questions about values: see torchfake._unknown_values.answerers
    # For _patches/entry, which leaves the mode:
    mode: Any = None  # a weak reference to the object that was entered
    owner: Any = None  # a weak reference to the ``__exit__`` of a ``with``, or to the mode object
    is_owned_by_with: bool = False
    thread_id: int = field(default_factory=threading.get_ident)
    slot_before: Any = None  # the mode that was in torch's FAKE slot before
    optimizes_before: bool = True  # whether TorchScript profiled and optimized scripts
    lift_before: bool = False  # whether torch.tensor() dispatched copies only, before
    dispatch: Any = None  # the mode in torch's FAKE slot while this mode is the innermost
    sign: Any = None  # held while the mode is on: see torchfake._core.living
    # For _patches/threads, which enters the mode in other threads:
    daemons: list[ModeState] = field(default_factory=list)  # its states in daemon threads
    is_over: bool = False  # of a state in a daemon thread: ended, but not left by its thread yet
    frame_callback_before: Any = None  # the function that torch.compile called for each frame


class AnsweringContext(NamedTuple):
    """One context in which questions about values are answered."""

    depth: int  # the number of modes that the context is inside of
    answerer: Any


class Recording:
    """Whether this process ever deferred anything, and the mode that then intercepts factories."""

    is_used = False
    factory_mode: Any = None  # a mode for torch's FAKE slot: set by torchfake._dispatch


recording = Recording()


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.modes: list[ModeState] = []
        self.starts_plain_threads = False  # new threads do not enter the modes of this thread
        # the position of the lazy generator: see torchfake._random.lazy_generators
        self.draw_position: Any = None
        self.skips_draws_as_one = False  # draws of several operators are counted as one
        self.answering: list[AnsweringContext] = []
        # entered contexts of torchfake.fx in which parameters are made on meta
        self.meta_patchers: list[Any] = []
        # generators drawn from in deferred modes, moved when the outermost mode is left
        self.drawn_generators: dict[torch.Generator, None] = {}
        # an interrupt during a lookup whose errors torch suppresses, to be raised again
        self.interrupt: BaseException | None = None
        self.latest_exit: Any = None  # a weak reference to the last ``__exit__`` that was looked up
        # the device type and dtype of autocast inside of the kernel that is recorded
        self.cast_inside: tuple[str, torch.dtype] | None = None
        self.traced_frames = 0  # the number of frames that torch.compile is tracing
        # the frame of a compound initializer whose call has been recorded already
        self.initializer_frame: types.FrameType | None = None
        # the device of a pickled storage of a size and a device, while torch.load moves tensors
        self.locate: Callable[[int, str], torch.device] | None = None

    torch_function: Any = None
    """The ``__torch_function__`` of fakes on this thread: set by
    :mod:`torchfake._tensor.torch_function`, and read at each call of a torch function."""


thread = _ThreadState()

on_any_thread: set[ModeState] = set()
"""The modes that are on, of all threads."""


def current() -> ModeState | None:
    """The innermost mode of this thread, or None outside all modes."""
    modes = thread.modes
    return modes[-1] if modes and not modes[-1].is_over else None


def end_in_daemons(state: ModeState) -> None:
    """End the modes that daemon threads entered because of `state`. Torch's own thread-local state
    is restored later, by the daemon threads themselves.
    """
    for daemon in state.daemons:
        daemon.is_over = True
        on_any_thread.discard(daemon)
        end_in_daemons(daemon)


def starting_plain_threads() -> Setting:
    """Context: threads that are started here are outside all modes, whatever modes are on."""
    return Setting(
        lambda: thread.starts_plain_threads,
        lambda value: setattr(thread, "starts_plain_threads", value),
        True,
    )


def is_recording() -> bool:
    """Whether the innermost mode is a deferred one, where values are obtained only by replay."""
    modes = thread.modes  # current() inlined, since each draw calls this function
    return bool(modes) and modes[-1].mark != 0 and not modes[-1].is_over


def is_in_recorded_initializer() -> bool:
    """Whether a compound initializer whose call has been recorded is on the call stack."""
    initializer = thread.initializer_frame
    frame: types.FrameType | None = None if initializer is None else sys._getframe(1)
    while frame is not None and frame is not initializer:
        frame = frame.f_back
    return frame is not None


def answerers() -> list[Any]:
    """Who answers questions about values on this thread, from the innermost outwards."""
    found: list[Any] = []
    contexts = thread.answering[::-1]
    depth = len(thread.modes)
    for state in reversed(thread.modes):
        found += [context.answerer for context in contexts if context.depth >= depth]
        contexts = [context for context in contexts if context.depth < depth]
        found += state.answerers
        depth -= 1
    return found + [context.answerer for context in contexts]
