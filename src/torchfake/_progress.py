"""A counter of the runs on fakes, on stderr or in a notebook, while a question takes long.

Input: the runs of :func:`count`. Output: a line of tqdm, with the number of runs, the seconds, and
what is run; in a command also the first :func:`notice` of what takes long. Invariant: nothing is
shown within the first second, nor where nobody looks: in a script, or if stderr is not a terminal,
unless the user asks for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torchfake.errors import MissingExtraError

SECONDS_OF_SILENCE = 1.0
_SECONDS_BETWEEN = 0.5


@contextmanager
def progress(what: str, wanted: bool | None = None) -> Iterator[None]:
    """Context in which runs are counted; inside of another one it does nothing.

    Args:
        what: the text before the counter.
        wanted: whether the counter is shown; by default in notebooks only.
    """
    if _shown or not ("ipykernel" in sys.modules if wanted is None else wanted):
        yield
        return
    counter = _counter(what, is_needed=bool(wanted))
    if counter is None:
        yield
        return
    _shown.append(counter)
    try:
        yield
    finally:
        end()


def end() -> None:
    """Take the counter away, so that something else can be written."""
    while _shown:
        _shown.pop().close()


def count(what: str) -> None:
    """Count a run that begins now."""
    for counter in _shown:
        counter.count(what)


@contextmanager
def noticing(write: Callable[[str], None]) -> Iterator[None]:
    """Context in which the first :func:`notice` is written while what is asked still runs."""
    _writers.append(write)
    try:
        yield
    finally:
        _writers.clear()


def notice(text: str) -> None:
    """Say what takes long, once, if somebody is told."""
    while _writers:
        for counter in _shown:
            counter.clear()
        _writers.pop()(text)


class _Counter:
    """A bar of tqdm without an end, drawn by a thread of its own: a single run may take long."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._ends = bar, threading.Event()
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)
        self._thread.start()

    def count(self, what: str) -> None:
        self._bar.n += 1
        self._bar.set_postfix_str(what, refresh=False)

    def clear(self) -> None:
        """Clear the line, until it is drawn again."""
        self._bar.clear()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._bar.close()

    def _draw(self) -> None:
        if self._ends.wait(SECONDS_OF_SILENCE):
            return
        self._bar.delay = 0  # else tqdm does not clear what it has drawn
        while True:
            self._bar.refresh()
            if self._ends.wait(_SECONDS_BETWEEN):
                return


_shown: list[_Counter] = []  # at most one
_writers: list[Callable[[str], None]] = []  # at most one, until it has written


def _counter(what: str, *, is_needed: bool) -> _Counter | None:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        if is_needed:
            raise MissingExtraError(
                'a counter of runs needs tqdm: pip install "torchfake[progress]"'
            ) from None
        return None
    form = "{desc}: {n_fmt} runs, {elapsed}{postfix}"
    delay = SECONDS_OF_SILENCE
    return _Counter(tqdm(desc=what, bar_format=form, delay=delay, leave=False, file=sys.stderr))
