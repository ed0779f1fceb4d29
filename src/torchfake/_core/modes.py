"""Thread-local state: the modes that are on, and what belongs to them.

Input: modes, entered and left by ``fake`` and ``deferred``. Output: the innermost mode of the
running thread. Invariant: all ambient state of torchfake is here, and all of it is thread-local but
for :data:`recording` and :data:`on_any_thread`.
"""

from __future__ import annotations

import sys
import threading
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from torchfake._core.gpu_profiles import CudaProfile
from torchfake._torch.contexts import Setting

PLAIN, DEFERRED, DEFERRED_AS_META = range(3)
"""Marks of modes and of the fakes made in them: operations are not recorded; they are; they are,
and the fake reports ``meta``."""


@dataclass(slots=True)
class FakeAccelerator:
    """The devices that a mode reports: of one type, and not there."""

    device_type: str
    num_devices: int
    profile: CudaProfile | None = None  # of CUDA devices: what they are
    current: int = 0  # index of the current device
    streams: dict[int, Any] = field(default_factory=dict)  # the current one of each device
    order: Any = None  # sees what streams record and wait for: set by torchfake.observe

    def unused(self) -> FakeAccelerator:
        """A new record of these devices, for another entry of a mode."""
        return FakeAccelerator(self.device_type, self.num_devices, self.profile)


@dataclass(slots=True, eq=False)
class ModeState:
    """The state of one ``with fake_mode()``, until it is left."""

    accelerator: FakeAccelerator | None = None
    is_loading: bool = False  # inside torch.load: storages arrive without their bytes
    mark: int = 0  # of the metadata of new fakes: see torchfake._core.metadata
    answerers: tuple[
        Any, ...
    ] = ()  # of questions about values: see torchfake._unknown_values.answerers
    # What _patches/entry needs to leave it:
    mode: Any = None  # a weak reference to the object that was entered
    owner: Any = None  # and to what can leave it: the ``__exit__`` of a ``with``, or the object
    is_owned_by_with: bool = False
    thread_id: int = field(default_factory=threading.get_ident)
    slot_before: Any = None  # what torch had in its FAKE slot
    lift_before: bool = False  # whether torch.tensor() dispatched copies only
    dispatch: Any = None  # what torch's FAKE slot has while this mode is the innermost
    sign: Any = None  # that a mode is on: see torchfake._core.living
    # What _patches/threads needs to have it followed into other threads:
    daemons: list[ModeState] = field(default_factory=list)  # in daemon threads: they end with it
    is_over: bool = False  # of such a state: its thread has still to leave it
    frame_callback_before: Any = None  # what torch.compile has asked at each frame


class AnsweringContext(NamedTuple):
    """One context in which questions about values are answered."""

    depth: int  # how many modes it is in
    answerer: Any


class Recording:
    """Whether anything was ever deferred in this process, and the mode that sees factories then."""

    is_used = False
    factory_mode: Any = None  # a mode for torch's FAKE slot: set by torchfake._dispatch


recording = Recording()


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.modes: list[ModeState] = []
        self.starts_plain_threads = False  # which the modes of this one do not follow into
        # of the lazy generator, for draws that have values: see torchfake._random.lazy_generators
        self.draw_position: Any = None
        self.passes_over_together = False  # draws are counted by the function that does them
        self.answering: list[AnsweringContext] = []
        # entered contexts of torchfake.fx in which parameters are made on meta
        self.meta_patchers: list[Any] = []
        # of torch, drawn from in deferred modes: moved when the outermost is left
        self.drawn_generators: dict[torch.Generator, None] = {}
        # raised in a look-up whose errors torch suppresses: to be raised again
        self.interrupt: BaseException | None = None
        self.latest_exit: Any = None  # a weak reference to the last ``__exit__`` that was looked up
        self.traced_frames = 0  # by torch.compile
        # of a compound initialiser whose call has been recorded already
        self.initialiser_frame: types.FrameType | None = None

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
    """End the modes that followed `state` into daemon threads, as far as another thread can: what
    torch has of them there is restored by their own threads.
    """
    for daemon in state.daemons:
        daemon.is_over = True
        on_any_thread.discard(daemon)
        end_in_daemons(daemon)


def starting_plain_threads() -> Setting:
    """Context: threads that are started here are outside of all modes, wherever this one is."""
    return Setting(
        lambda: thread.starts_plain_threads,
        lambda value: setattr(thread, "starts_plain_threads", value),
        True,
    )


def is_recording() -> bool:
    """Whether the innermost mode is a deferred one, where values are obtained only by replay."""
    modes = thread.modes  # as in current(), without a call: each draw asks
    return bool(modes) and modes[-1].mark != 0 and not modes[-1].is_over


def is_in_recorded_initialiser() -> bool:
    """Whether this is called by a compound initialiser whose call has been recorded already."""
    initialiser = thread.initialiser_frame
    frame: types.FrameType | None = None if initialiser is None else sys._getframe(1)
    while frame is not None and frame is not initialiser:
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
