"""Contexts restore what they change: after the block, an error, and when nobody leaves them."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch

from torchfake._torch import autograd, contexts


class Recorded(contexts.Restoring):
    """A context that writes down what is done to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def change(self) -> str:
        self.calls.append("change")
        return "value"

    def restore(self) -> None:
        self.calls.append("restore")

    def interrupted(self, error: BaseException) -> None:
        self.calls.append(type(error).__name__)


def test_a_context_is_restored_once() -> None:
    context = Recorded()
    with context as value:
        assert value == "value"
        assert context.calls == ["change"]
    assert context.calls == ["change", "restore"]


def test_an_interrupt_is_told_before() -> None:
    context = Recorded()
    with pytest.raises(KeyboardInterrupt), context:
        raise KeyboardInterrupt
    assert context.calls == ["change", "KeyboardInterrupt", "restore"]


def test_an_exit_that_is_dropped_without_a_call_restores() -> None:
    """What happens if an interrupt arrives before the first bytecode of ``__exit__``."""
    context = Recorded()
    exit_ = context.__exit__
    context.__enter__()
    del exit_
    assert context.calls == ["change", "restore"]


def test_a_change_that_fails_is_undone() -> None:
    class Failing(Recorded):
        def change(self) -> str:
            raise ValueError

    context = Failing()
    with pytest.raises(ValueError), context:  # noqa: PT011
        pass
    assert context.calls[0] == "restore"


def test_leave_is_the_exit_that_an_exit_stack_calls() -> None:
    context = Recorded()
    context.__enter__()
    assert contexts.Restoring.__exit__ is contexts.leave
    contexts.leave(context, None, None, None)
    assert context.calls == ["change", "restore"]


def test_watch() -> None:
    class Owner:
        pass

    owner, ended = Owner(), []
    ref = contexts.watch(owner, partial(ended.append, 1))
    assert ref() is owner
    del owner
    assert ended == [1]


def test_uninterrupted() -> None:
    done: list[int] = []
    contexts.uninterrupted([partial(done.append, i) for i in range(3)])
    assert done == [0, 1, 2]


def test_holding() -> None:
    lock = threading.Lock()
    with contexts.holding(lock):
        assert lock.locked()
    assert not lock.locked()


def test_setting() -> None:
    with contexts.Setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64):
        assert torch.get_default_dtype() is torch.float64
    assert torch.get_default_dtype() is torch.float32


def test_guards_and_together() -> None:
    guards = contexts.Guards(partial(torch._C._InferenceMode, True))
    with contexts.Together(guards, autograd.no_grad()):
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_interrupt_behind_an_error() -> None:
    """An error of a context that was left half-way gives way; one raised on purpose does not."""
    interrupt, error = KeyboardInterrupt(), KeyError()
    error.__context__ = interrupt
    assert contexts.handled_errors(error) == [error, interrupt]
    assert contexts.interrupt_behind(error) is interrupt
    error.__cause__ = interrupt  # as ``raise ... from`` does
    assert contexts.interrupt_behind(error) is None
    assert contexts.interrupt_behind(interrupt) is interrupt


def test_calls_that_are_made_in_c() -> None:
    """Functions added meanwhile are called too; each once, and one only if its flag is true."""
    made: list[str] = []
    functions = [partial(made.append, "first")]
    calls = contexts.calls_in_c(functions)
    for name, flag in (("yes", True), ("no", False)):
        flags = contexts.results([partial(bool, flag)])
        functions.append(contexts.call_if(flags, partial(made.append, name)))
    assert next(calls, "done") == "done"
    functions[1]()
    assert made == ["first", "yes"]
