"""A process that is forked while a thread materializes can materialize, too."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from torchfake import deferred_init, is_deferred, materialize_module

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

begun, may_go_on = threading.Event(), threading.Event()


@torch.library.custom_op("torchfake_tests::slow_scale", mutates_args=())
def slow_scale(x: torch.Tensor) -> torch.Tensor:
    begun.set()
    may_go_on.wait(60)
    return x * 2


@slow_scale.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 5)
        self.last = torch.nn.Linear(5, 2)
        self.register_buffer("scale", slow_scale(torch.rand(3)))


def _is_equal(module: torch.nn.Module, state: dict[str, torch.Tensor]) -> bool:
    own = materialize_module(module).state_dict()
    return not is_deferred(module) and all(torch.equal(own[name], state[name]) for name in state)


def test_the_child_and_the_parent_have_the_values_of_eager() -> None:
    """Of the module that the thread materializes, and of another."""
    may_go_on.set()
    torch.manual_seed(0)
    state = Net().state_dict()
    may_go_on.clear()
    begun.clear()
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(deferred_init(Net))
    thread = threading.Thread(target=materialize_module, args=(modules[0],))
    thread.start()
    begun.wait(60)
    process = os.fork()
    if process == 0:
        may_go_on.set()
        os._exit(0 if all(_is_equal(module, state) for module in modules) else 1)
    may_go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert all(_is_equal(module, state) for module in modules)
