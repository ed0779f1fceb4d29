"""The current mode is the innermost mode of the running thread."""

from __future__ import annotations

import threading

from torchfake import deferred_mode, fake_mode
from torchfake._core import modes
from torchfake._core.metadata import DEFERRED


def test_the_innermost_mode_is_current() -> None:
    assert modes.current() is None
    with fake_mode(fake_cuda=2):
        outer = modes.current()
        assert outer is not None
        assert outer.accelerator is not None
        assert outer.accelerator.num_devices == 2
        with fake_mode():
            assert modes.current() is not outer
        assert modes.current() is outer
    assert modes.current() is None


def test_recording_is_that_of_the_innermost_mode() -> None:
    assert not modes.is_recording()
    with deferred_mode():
        assert modes.is_recording()
        assert modes.current().mark == DEFERRED  # type: ignore[union-attr]
        with fake_mode():
            assert not modes.is_recording()
        assert modes.is_recording()


def test_modes_are_of_one_thread() -> None:
    seen = []
    with fake_mode():
        thread = threading.Thread(target=lambda: seen.append(modes.current()))
        with modes.starting_plain_threads():
            thread.start()
        thread.join()
    assert seen == [None]
