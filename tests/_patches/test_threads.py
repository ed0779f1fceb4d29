"""Modes follow into threads that are started inside them, and into work handed to executors."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode, is_deferred, is_fake, materialize_tensor

ORIGINALS = threading.Thread.start, ThreadPoolExecutor.submit, ThreadPool.__init__
TIMEOUT = 60


def ones(*_: object) -> torch.Tensor:
    return torch.ones(3)


@pytest.fixture(autouse=True)
def nothing_stays_replaced() -> Iterator[None]:
    yield
    assert (threading.Thread.start, ThreadPoolExecutor.submit, ThreadPool.__init__) == ORIGINALS


def run_thread(function: Callable[[], Any], **options: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()), **options)
    thread.start()
    thread.join(TIMEOUT)
    return found[0]


class Background:
    """A thread that calls a function each time it is told to."""

    def __init__(self, function: Callable[[], Any], *, daemon: bool) -> None:
        self._function = function
        self._steps = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._is_last = False
        self.results: list[Any] = []
        self._thread = threading.Thread(target=self._work, daemon=daemon)
        self._thread.start()

    def _work(self) -> None:
        while self._steps.acquire(timeout=TIMEOUT) and not self._is_last:
            self.results.append(self._function())
            self._done.release()

    def step(self) -> Any:
        self._steps.release()
        assert self._done.acquire(timeout=TIMEOUT)
        return self.results[-1]

    def end(self) -> None:
        self._is_last = True
        self._steps.release()
        self._thread.join(TIMEOUT)


HANDED_OVER: dict[str, Callable[[Any], Any]] = {
    "submit": lambda pools: pools[0].submit(ones).result(TIMEOUT),
    "map": lambda pools: next(pools[0].map(ones, range(2))),
    "to_thread": lambda pools: asyncio.run(asyncio.to_thread(ones)),
    "apply": lambda pools: pools[1].apply(ones),
    "apply_async": lambda pools: pools[1].apply_async(func=ones).get(TIMEOUT),
    "pool map": lambda pools: pools[1].map(ones, range(3))[2],
    "starmap": lambda pools: pools[1].starmap(ones, [(1, 2)])[0],
    "imap": lambda pools: next(pools[1].imap(ones, range(2))),
    "imap_unordered": lambda pools: next(pools[1].imap_unordered(ones, range(2))),
}


@pytest.mark.parametrize("made_inside", [False, True])
def test_work_is_done_in_the_mode_of_who_hands_it_over(made_inside: bool) -> None:
    """Whether the workers were started before or inside, and whatever they did before."""
    if made_inside:
        with fake_mode():
            pools = ThreadPoolExecutor(1), ThreadPool(1)
            assert all(is_fake(run(pools)) for run in HANDED_OVER.values())
    else:
        pools = ThreadPoolExecutor(1), ThreadPool(1)
    with pools[0], pools[1]:
        for name, run in HANDED_OVER.items():
            assert not is_fake(run(pools)), name
            with fake_mode():
                assert is_fake(run(pools)), name
            with deferred_mode():
                assert is_deferred(run(pools)), name
            assert run(pools).tolist() == [1.0, 1.0, 1.0], name


def test_a_thread_runs_in_the_mode_it_is_started_in() -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            self.made = ones()

    with fake_mode():
        before, own = threading.Thread(target=ones), Own()
        assert is_fake(run_thread(ones))
        own.start()
        own.join(TIMEOUT)
        assert "run" not in vars(own)
        assert is_fake(run_thread(lambda: run_thread(ones)))  # a thread of a thread
    assert is_fake(own.made)
    before.start()  # outside, though it was made inside
    before.join(TIMEOUT)


def test_work_from_outside_is_done_outside() -> None:
    """Though the worker was started inside, where the mode is still on."""
    with ThreadPoolExecutor(1) as pool:
        outside = Background(lambda: pool.submit(ones).result(TIMEOUT), daemon=False)
        with fake_mode():
            assert is_fake(pool.submit(ones).result(TIMEOUT))
            assert not is_fake(outside.step())
        outside.end()


def test_the_devices_of_the_mode_are_there() -> None:
    """The current one is the first, as in a new thread of eager."""
    with fake_mode(fake_cuda=3):
        torch.cuda.set_device(2)
        place = run_thread(lambda: (torch.cuda.device_count(), torch.ones(1, device="cuda").device))
        assert torch.cuda.current_device() == 2
    assert place == (3, torch.device("cuda:0"))


@pytest.mark.parametrize("daemon", [False, True])
def test_a_thread_that_outlives_the_mode(daemon: bool) -> None:
    """It stays in the mode to its end; one that nobody waits for is outside from then on."""
    with fake_mode():
        thread = Background(ones, daemon=daemon)
        assert is_fake(thread.step())
    assert is_fake(thread.step()) is not daemon
    assert is_fake(thread.step()) is not daemon
    assert (threading.Thread.start is ORIGINALS[0]) is daemon
    assert not is_fake(ones())
    thread.end()


def test_a_daemon_that_is_told_nothing() -> None:
    """Whatever it asks first after the mode, it is answered by torch itself."""
    for ask in (torch.cuda.device_count, lambda: torch.asarray([1]), lambda: torch.tensor([1])):
        with fake_mode(fake_cuda=4):
            inner = Background(ask, daemon=True)
            with fake_mode():
                pass
        with fake_mode(fake_cuda=5):  # whose replacements are on
            answer = inner.step()
        assert answer == 0 or not is_fake(answer)
        inner.end()


def test_a_daemon_may_start_another() -> None:
    def start_another() -> Any:
        inner = Background(ones, daemon=True)
        made = inner.step()
        inner.end()
        return made

    with deferred_mode():
        outer = Background(start_another, daemon=True)
        assert is_deferred(outer.step())
        outer.end()


def test_queued_work_is_done_in_its_mode_after_it() -> None:
    begin = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(begin.wait, TIMEOUT)
        with deferred_mode():
            made = pool.submit(torch.rand, 3)
        begin.set()
        assert is_deferred(made.result(TIMEOUT))
        assert not is_fake(pool.submit(ones).result(TIMEOUT))


def test_errors_leave_the_mode() -> None:
    """Also where work enters a mode of its own, and does not leave it."""

    def fail() -> None:
        fake_mode().__enter__()
        raise ValueError("of the worker")

    with ThreadPoolExecutor(1) as pool:
        with fake_mode(), pytest.raises(ValueError, match="of the worker"):
            pool.submit(fail).result(TIMEOUT)
        assert not is_fake(pool.submit(ones).result(TIMEOUT))


def test_a_mode_is_left_where_it_was_entered() -> None:
    mode = fake_mode()
    with mode:
        with pytest.raises(RuntimeError, match="not active on this thread"):
            ThreadPoolExecutor(1).submit(mode.__exit__, None, None, None).result(TIMEOUT)
        assert is_fake(ones())


def test_a_thread_that_cannot_be_started() -> None:
    with fake_mode():
        thread = threading.Thread(target=ones)
        thread.start()
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
        assert "run" not in vars(thread)
        thread.join(TIMEOUT)


# What threads share.


def test_generators_are_one_sequence() -> None:
    """In the order of the draws; and where eager leaves them, when the mode is left."""

    def program(mode: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        with ThreadPoolExecutor(1) as pool, mode:
            made = [torch.rand(3), pool.submit(torch.rand, 4).result(TIMEOUT), torch.rand(5)]
        return [*made, torch.rand(2)]

    eager = program(torch.no_grad())
    deferred = program(deferred_mode())
    for one, other in zip(eager, deferred, strict=True):
        assert torch.equal(one, materialize_tensor(other))


def test_known_draws_are_one_sequence() -> None:
    def program(mode: Any) -> list[Any]:
        torch.manual_seed(0)
        draw = torch.randint
        with ThreadPoolExecutor(1) as pool, mode:
            draws = [draw(99, (3,)), pool.submit(draw, 99, (3,)).result(TIMEOUT), draw(99, (3,))]
            pool.submit(torch.manual_seed, 5).result(TIMEOUT)
            return [drawn.tolist() for drawn in (*draws, draw(99, (3,)))]

    assert program(fake_mode()) == program(torch.no_grad())


def test_two_threads_record_parts_of_one_tensor() -> None:
    """No write is lost, wherever Python changes threads."""

    def fill(row: torch.Tensor) -> None:
        for i in range(20):
            row[i].fill_(i)
            row.add_(1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with deferred_mode(), ThreadPoolExecutor(4) as pool:
            made = torch.zeros(8, 20)
            list(pool.map(fill, made))
    finally:
        sys.setswitchinterval(interval)
    expected = torch.zeros(8, 20)
    for row in expected:
        fill(row)
    assert torch.equal(materialize_tensor(made), expected)
