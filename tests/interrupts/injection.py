"""KeyboardInterrupt raised at one chosen point of a program: before a line or a single bytecode.

Python raises it between any two bytecodes, at the first one of ``__exit__`` too, when nothing of it
has run. A trace function reaches every such point, and more: some bytecodes never look for signals.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torchfake
from tests.interrupts import programs
from torchfake._patches import autocast
from torchfake._tensor import torch_function
from torchfake.fx import MetaAwareMethodsPatcher

OWN = (os.path.dirname(torchfake.__file__), contextlib.__file__, programs.__file__)
"""Where interrupts arrive: in torchfake, in contextlib, and in programs that use modes."""

LOST = (torch_function.__file__, "__get__")
"""Where torch looks up ``__torch_function__`` of a fake outside all modes: torch's C++ suppresses
what is raised before its first line."""

NOT_LEFT = (
    programs.autocast.__code__,  # torch.autocast itself is not left at its last line
    programs.meta_patcher.__code__,  # nor is a ``finally`` always reached, or what it calls
    MetaAwareMethodsPatcher.unpatch.__code__,
    autocast.PATCHES[0].make_replacement(int).__code__,  # what torch.autocast calls when left
)
"""Where an interrupt can keep what the program has to do itself from beginning."""

MODES_OF_EXPORT = os.path.join(OWN[0], "_tracing", "export_without_cuda.py")
"""Where C++ asks a tensor for its device during an export. It ends the process if that raises, in
torch's own modes too."""

EVENTS = frozenset({"call", "line", "opcode", "return"})


_TAKES_LOCK = re.compile(r"\s*with \w*lock:")


def _is_between_lock_and_block(frame: types.FrameType) -> bool:
    """Whether a lock is being acquired or released by a ``with`` statement of its own. Python looks
    for signals after a call, and then the lock is held in the block, or is released. To raise
    earlier would leave it held: this thread would not notice, and all others would wait.
    """
    number = frame.f_lineno or 0  # some instructions are of no line
    line = linecache.getline(frame.f_code.co_filename, number)
    return _TAKES_LOCK.match(line) is not None


def is_own(code: types.CodeType) -> bool:
    """Whether an interrupt may arrive in `code`. Imports are Python's, and done once."""
    if code.co_name == "<module>" or (code.co_filename == LOST[0] and code.co_name == LOST[1]):
        return False
    if code in NOT_LEFT:
        return False
    return code.co_filename.startswith(OWN)


def _is_lost_in_torch(frame: types.FrameType) -> bool:
    """Whether torch itself does not bear an interrupt here, without fakes either."""
    at: types.FrameType | None = frame
    in_stance = False
    while at is not None:
        name, path = at.f_code.co_name, at.f_code.co_filename
        is_mode = path == MODES_OF_EXPORT
        if is_mode and at.f_locals.get("func") is torch.ops.prim.device.default:
            return True
        if path == contextlib.__file__ and at.f_back is not None:
            if at.f_back.f_code.co_filename == torch.overrides.__file__:
                return True  # a mode of torch functions is put aside, and not put back
        in_stance = in_stance or name == "callback_from_stance"
        if in_stance and name == "proxy_call":
            return True  # what asks the stance here was called by C++, which ends the process
        at = at.f_back
    return False


def _is_never_reached(frame: types.FrameType) -> bool:
    return _is_between_lock_and_block(frame) or _is_lost_in_torch(frame)


def is_anywhere(code: types.CodeType) -> bool:
    """The same for all Python code but the import system's and this file."""
    return not code.co_filename.startswith("<") and code.co_filename != __file__


class Injector:
    """A trace function that counts events, and raises at the one of number `at`."""

    def __init__(
        self,
        at: int = -1,
        *,
        events: frozenset[str] = EVENTS,
        where: Callable[[types.CodeType], bool] = is_own,
        error: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        self.at, self.events, self.where, self.error = at, events, where, error
        self.num_events = 0
        self.point = ""  # where it was raised
        self.is_dropped = (
            False  # by Python, as it closes a generator that nobody has run to its end
        )
        self._is_own: dict[types.CodeType, bool] = {}

    def __call__(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        """The global trace function: called when a function is called."""
        code = frame.f_code
        own = self._is_own.get(code)
        if own is None:
            own = self._is_own[code] = self.where(code)
        if not own:
            return None
        frame.f_trace_opcodes = "opcode" in self.events
        self._event(frame, "call")
        return self._event

    def _event(self, frame: types.FrameType, event: str, arg: Any = None) -> Any:
        if event in self.events:
            self.num_events += 1
            if self.num_events - 1 == self.at and not _is_never_reached(frame):
                code = frame.f_code
                name = os.path.basename(code.co_filename)
                self.point = f"{name}:{frame.f_lineno} {code.co_name}+{frame.f_lasti} ({event})"
                raise self.error
        return self._event

    @contextlib.contextmanager
    def on(self) -> Iterator[Injector]:
        """Context: this thread is traced."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield self
        finally:
            sys.settrace(before)

    def run(self, program: Callable[[], Any]) -> BaseException | None:
        """Run `program`; what came out of it."""
        before, hook = sys.gettrace(), sys.unraisablehook
        sys.unraisablehook = self._unraisable
        sys.settrace(self)
        try:
            program()
        except BaseException as error:
            sys.settrace(before)
            return error.with_traceback(None)
        finally:
            sys.settrace(before)
            sys.unraisablehook = hook
        return None

    def _unraisable(self, dropped: Any) -> None:
        if dropped.exc_type is self.error and isinstance(dropped.object, types.GeneratorType):
            self.is_dropped = True
        else:
            sys.__unraisablehook__(dropped)


def run_in_thread(function: Callable[[], Any]) -> Any:
    """The result of `function`, on another thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join(60)
    frame = sys._current_frames().get(thread.ident or 0) if thread.is_alive() else None
    assert frame is None, "".join(traceback.format_stack(frame))
    return results[0]
