"""Modes are entered again, nested, left by exceptions, and used as decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.conftest import all_fake
from torchfake import fake_mode, is_fake


def test_reentrancy() -> None:
    """One mode object, entered inside itself and again later."""
    mode = fake_mode(fake_cuda=2)
    for _ in range(2):
        with mode, mode:
            torch.cuda.set_device(1)
            with mode:
                assert torch.cuda.current_device() == 0
            assert torch.cuda.current_device() == 1
        assert not is_fake(torch.ones(1))


def test_exceptions_leave_the_mode() -> None:
    """Errors of the user's, of an operator's and of ours, at every depth."""

    def user_error() -> None:
        raise KeyError("x")

    def operator_error() -> None:
        torch.ones(2) @ torch.ones(3)

    def unknown_value() -> None:
        bool(torch.randn(500).sum() > 0)

    for program in (user_error, operator_error, unknown_value):
        with pytest.raises((KeyError, RuntimeError, ValueError)), fake_mode(), fake_mode():
            program()
        assert not is_fake(torch.ones(1))


def test_errors_are_eagers() -> None:
    """What eager refuses is refused, with eager's class of error and, mostly, its message."""
    # Where meta kernels have messages of their own, the class of the error is still eager's.
    other_messages = set()
    programs: list[Callable[[], Any]] = [
        lambda: torch.ones(2, 3) @ torch.ones(2, 3),
        lambda: torch.ones(2).view(3),
        lambda: torch.ones(2) + torch.ones(3),
        lambda: torch.cat([torch.ones(2, 2), torch.ones(3, 3)]),
        lambda: torch.ones(2)[5],
        lambda: torch.ones(2).sum(4),
        lambda: F.conv2d(torch.ones(1, 3, 4, 4), torch.ones(2, 4, 3, 3)),
        lambda: torch.empty(-1),
        lambda: torch.ones(2, requires_grad=True).add_(1),
        lambda: torch.ones(2).backward(),
        lambda: nn.Linear(2, 3)(torch.ones(3)),
        lambda: torch.ones(2).expand(3, 3),
        lambda: torch.ones(2, dtype=torch.int64).requires_grad_(),
    ]
    for number, program in enumerate(programs):
        with pytest.raises(Exception) as real:  # noqa: PT011
            program()
        with pytest.raises(Exception) as fake, fake_mode():  # noqa: PT011
            program()
        assert fake.type is real.type
        assert (str(fake.value) != str(real.value)) is (number in other_messages)


def test_decorator() -> None:
    """Each call is in a mode of its own; recursion, arguments and the name are kept."""

    @fake_mode(fake_cuda=2)
    def build(depth: int, *, width: int = 2) -> list[torch.Tensor]:
        """Builds."""
        torch.cuda.set_device(depth % 2)
        deeper = build(depth - 1, width=width) if depth else []
        assert torch.cuda.current_device() == depth % 2
        return [torch.ones(width, device="cuda"), *deeper]

    made = build(3, width=4)
    assert [t.device.index for t in made] == [1, 0, 1, 0]
    assert all_fake(made)
    assert (build.__name__, build.__doc__) == ("build", "Builds.")
    assert not is_fake(torch.ones(1))


def test_a_mode_left_out_of_order_by_a_generator() -> None:
    """A generator suspended in its mode hands it to its caller, as any context manager does."""

    def items() -> Any:
        with fake_mode():
            yield torch.ones(1)

    running = items()
    assert is_fake(next(running))
    running.close()
    assert not is_fake(torch.ones(1))


@pytest.mark.parametrize("order", ["before", "after"])
def test_device_contexts(order: str) -> None:
    """``with torch.device`` around and inside, meta and cpu."""
    device, fake = torch.device("meta"), fake_mode()
    outer, inner = (device, fake) if order == "before" else (fake, device)
    with outer, inner:
        made, linear = torch.ones(2), nn.Linear(2, 2)
        explicit = torch.ones(2, device="cpu")
    assert made.is_meta
    assert linear.weight.is_meta
    assert is_fake(explicit)
    with torch.device("cpu"), fake_mode():
        assert is_fake(torch.ones(2))
    assert not torch.ones(1).is_meta
