"""Modes left out of order, twice, elsewhere, or never."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.interrupts import torch_state
from tests.interrupts.injection import Injector, run_in_thread
from torchfake import deferred_mode, fake_mode, is_fake
from torchfake.fx import MetaAwareMethodsPatcher
from torchfake.meta_init import meta_init

KINDS = (fake_mode, deferred_mode, meta_init, MetaAwareMethodsPatcher)


@pytest.fixture(autouse=True)
def torch_unchanged() -> Iterator[None]:
    torch_state.failures_afterwards()  # what stays replaced where there have been fakes
    before = torch_state.snapshot()
    yield
    assert torch_state.differences(before) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_exit_without_an_entry(kind: Any) -> None:
    before = torch_state.snapshot()
    mode = kind()
    with pytest.raises(RuntimeError, match=f"{kind.__name__} was exited, but is not active"):
        mode.__exit__(None, None, None)
    if kind is not MetaAwareMethodsPatcher:  # whose forwards stay until unpatch()
        with mode:
            pass
    with pytest.raises(RuntimeError, match="is not active on this thread"):
        mode.__exit__(None, None, None)
    assert torch_state.differences(before) == []


def test_out_of_order_changes_nothing() -> None:
    outer, inner = fake_mode(fake_cuda=True), deferred_mode(fake_cuda=2)
    outer.__enter__()
    inner.__enter__()
    inside = torch_state.snapshot()
    with pytest.raises(RuntimeError, match="fake_mode was left before deferred_mode"):
        outer.__exit__(None, None, None)
    assert torch_state.differences(inside) == []
    assert torch.empty(2, device="cuda:1").device.index == 1
    inner.__exit__(None, None, None)
    assert torch.cuda.device_count() == 1
    outer.__exit__(None, None, None)


def test_a_suspended_generator_that_outlives_the_mode_around_it() -> None:
    """The outer mode's ``with`` is gone: it ends when the generator is closed."""

    def items() -> Iterator[torch.Tensor]:
        with fake_mode():
            yield torch.ones(1)

    running = items()
    with pytest.raises(RuntimeError, match="a generator or coroutine"), deferred_mode():
        next(running)
    assert is_fake(torch.ones(1))
    running.close()
    assert not is_fake(torch.ones(1))


def test_an_error_leaves_what_is_inside() -> None:
    inner = fake_mode()

    def interrupted() -> None:
        with fake_mode():
            inner.__enter__()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_fake(torch.ones(1))


def test_another_thread_cannot_leave_a_mode() -> None:
    def leave() -> str:
        with pytest.raises(RuntimeError, match="on the same thread") as caught:
            mode.__exit__(None, None, None)
        return str(caught.value)

    with fake_mode() as mode:
        assert "is not active on this thread" in run_in_thread(leave)
        assert is_fake(torch.ones(1))


def test_a_mode_whose_object_is_dropped_ends() -> None:
    mode = fake_mode(fake_cuda=True)
    mode.__enter__()
    assert is_fake(torch.ones(1))
    assert hasattr(mode, "__exit__")  # looking is no leaving
    assert is_fake(torch.ones(1))
    del mode
    assert not is_fake(torch.ones(1))


def test_an_interrupted_exit_stack() -> None:
    """contextlib's own code has points where nobody leaves what was entered: its object does."""
    for point in range(0, 400, 75):
        injector = Injector(point, where=lambda code: code.co_filename == contextlib.__file__)
        injector.run(_with_an_exit_stack)
        gc.collect()
        assert not is_fake(torch.ones(1)), injector.point


def _with_an_exit_stack() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(fake_mode())
        stack.enter_context(deferred_mode())


def test_a_thread_that_is_interrupted_while_another_is_in_a_mode() -> None:
    """The other thread's mode is untouched, and the last one to leave restores torch."""
    interrupted, left = threading.Event(), []

    def other() -> None:
        with fake_mode(fake_cuda=True):
            interrupted.wait(60)
            left.append(torch.ones(1, device="cuda").is_cuda)

    thread = threading.Thread(target=other)
    thread.start()
    for point in range(0, 3000, 97):

        def program(point: int = point) -> Any:
            return Injector(point).run(_enter_and_leave), is_fake(torch.ones(1))

        error, fake = run_in_thread(program)
        assert type(error) in (KeyboardInterrupt, type(None))
        assert not fake
    interrupted.set()
    thread.join()
    assert left == [True]


def _enter_and_leave() -> None:
    with deferred_mode(fake_cuda=2):
        torch.ones(1)


def test_a_thread_that_ends_in_a_mode() -> None:
    kept = []

    def enter() -> None:
        kept.append(fake_mode(fake_cuda=True))
        kept[0].__enter__()

    run_in_thread(enter)
    kept.clear()
