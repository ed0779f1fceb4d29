"""The only ambient state: which modes are on, on this thread.

Enters: modes, from :mod:`torchfake.fake`. Leaves: the innermost one. Invariant: everything here
is thread-local.
"""

from __future__ import annotations

import contextlib
import threading
import types
from dataclasses import dataclass, field
from typing import Any

import torch

from torchfake._cuda import CudaProfile


@dataclass(slots=True)
class FakeCuda:
    """The CUDA machine a mode pretends to be."""

    profile: CudaProfile
    num_devices: int
    current: int = 0


@dataclass(slots=True)
class ModeState:
    """What one entry of ``fake_mode`` holds until it is left."""

    cuda: FakeCuda | None = None
    loading: bool = False  # inside torch.load: storages arrive without their bytes
    mark: int = 0  # what new fakes carry: see torchfake._metadata
    drawn_from: dict[torch.Generator, None] = field(default_factory=dict)  # to be settled
    undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


@dataclass(slots=True)
class Draws:
    """The private generator of known draws, and the global one's state when it was forked."""

    generator: torch.Generator | None = None
    forked_from: torch.Tensor | None = None


class Recording:
    """Whether anything was ever deferred in this process, and what then watches factories."""

    is_used = False
    watch: Any = None  # a mode for torch's FAKE slot: set by torchfake._dispatch


recording = Recording()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.modes: list[ModeState] = []
        self.draws = Draws()
        self.num_patchers = 0  # contexts of torchfake.fx in which parameters are made on meta
        self.step: types.FrameType | None = None  # an initialiser's call that is recorded already

    torch_function: Any = None
    """What ``__torch_function__`` of a fake is on this thread: kept by :mod:`torchfake._function`,
    and read at each call of a torch function."""


thread = _Thread()


def current() -> ModeState | None:
    """The innermost mode of this thread, or None outside all modes."""
    modes = thread.modes
    return modes[-1] if modes else None


def is_recording() -> bool:
    """Whether the innermost mode is a deferred one, in which values are had by replaying alone."""
    state = current()
    return state is not None and state.mark != 0


def draws() -> Draws:
    """The private generator of the running thread."""
    return thread.draws


def forget_draws() -> None:
    """Fork anew at the next known draw: the user has reseeded, or a mode begins."""
    thread.draws = Draws()


def push(state: ModeState) -> None:
    thread.modes.append(state)


def pop() -> ModeState:
    return thread.modes.pop()
