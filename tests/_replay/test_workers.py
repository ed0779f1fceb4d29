"""Replays on several threads: the bits of eager mode, and nothing left over after an error."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

import pytest
import torch

from tests._replay.conftest import (
    Model,
    before_each_tile,
    eager_and_materialized,
)
from tests.oracle import assert_equals_eager, assert_same
from tests.tiny_tiles import tiny_tiles
from torchfake import deferred_init, errors, materialize_module
from torchfake._replay.task_graph import build_task_graph
from torchfake._replay.workers import Workers


@pytest.mark.parametrize("num_threads", [1, 2, 3, 16])
@pytest.mark.usefixtures("tiny")
def test_any_number_of_threads(num_threads: int) -> None:
    eager, materialized = eager_and_materialized(Model, threads=num_threads)
    assert_same(eager, materialized)


@pytest.mark.usefixtures("tiny")
def test_any_order() -> None:
    assert_equals_eager(Model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.usefixtures("tiny")
def test_a_model_cast_after_construction(dtype: torch.dtype) -> None:
    assert_equals_eager(lambda: Model().to(dtype))


def test_little_work_starts_no_threads() -> None:
    workers = Workers(build_task_graph([]), set(), lambda *_: None, num_threads=8)
    assert workers._num_helpers() == 0


# Errors and Ctrl-C.


def test_an_error_on_another_thread() -> None:
    """It is raised in the calling thread; what is still deferred can be materialized later."""
    torch.manual_seed(0)
    eager = Model()
    torch.manual_seed(0)
    module = deferred_init(Model)
    failed: list[int] = []
    caught: list[str] = []

    def fail_once_on_a_helper(*_: object) -> None:
        if threading.current_thread() is not threading.main_thread() and not failed:
            failed.append(1)
            raise errors.ReplayError("out of luck")

    with tiny_tiles(), before_each_tile(fail_once_on_a_helper):
        for attempt in range(100):  # until a helper was quick enough to get something to do
            try:
                materialize_module(module if attempt == 0 else deferred_init(Model), threads=4)
            except errors.ReplayError as error:
                caught.append(str(error))
                break
        assert caught == ["out of luck"]
        materialize_module(module)
    assert_same(eager, module)


@pytest.mark.parametrize("at", [0, 3, 40, 200])
def test_an_interrupt_at_a_tile(at: int) -> None:
    """Ctrl-C leaves each tensor deferred or real, and another call goes on."""
    torch.manual_seed(0)
    eager = Model()
    torch.manual_seed(0)
    module = deferred_init(Model)
    count = [0]

    def interrupt(*_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            count[0] += 1
            if count[0] > at:
                raise KeyboardInterrupt

    may_be_late = contextlib.suppress(KeyboardInterrupt)  # helpers may compute everything first
    with tiny_tiles(), before_each_tile(interrupt), may_be_late:
        materialize_module(module)
    with tiny_tiles():
        assert_same(eager, materialize_module(module))


INTERRUPTED = """
import signal, sys, threading, time, torch
from torch import nn
from torchfake import deferred_init, is_deferred, materialize_module

def build():
    return nn.Sequential(*(nn.Linear(300, 300) for _ in range(30)))

torch.manual_seed(0)
expected = build()
for i in range(40):
    torch.manual_seed(0)
    module = deferred_init(build)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.0005 * (i % 20 + 1))
    try:
        materialize_module(module, threads=3)
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    deadline = time.monotonic() + 5
    while any(t.name == "torchfake" for t in threading.enumerate()):
        assert time.monotonic() < deadline
    materialize_module(module)
    assert all(map(torch.equal, module.parameters(), expected.parameters()))
print("done")
"""


def test_an_interrupt_at_any_moment() -> None:
    """In a process of its own, which must end."""
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.stdout.strip() == "done", process.stderr
