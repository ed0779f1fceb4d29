"""What torchfake takes for granted of torch's insides: whether it holds, and what if not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from torchfake._random import generator_memory
from torchfake._torch import dispatch_keys, private_facts, subclass, versions
from torchfake._torch.compiler import higher_order, python_functions
from torchfake._torch.distributed import dtensors

SHORTCUTS = [
    generator_memory.FACT,
    higher_order.UNFUSED_ATTENTION,
    python_functions.COMPOUND_INITIALIZERS,
]
OTHERS = [
    dispatch_keys.WRAPPER_KEY.fact,
    dispatch_keys.RECORDING_KEY.fact,
    dispatch_keys.CUDA_WRAPPER_KEY.fact,
    dispatch_keys.ZERO_WRAPPER_KEY.fact,
    dispatch_keys.AUTOCAST_KEY.fact,
    dtensors.COLLECTIVES,
    python_functions.ASSUMED_VALUES,
    python_functions.ATTENTION,
    python_functions.TO_EMPTY,
    subclass.SWAP,
]


@pytest.mark.parametrize("fact", [*SHORTCUTS, *OTHERS], ids=lambda fact: fact.name)
def test_a_fact_holds_on_this_torch(fact: private_facts.PrivateFact) -> None:
    """A torch that changed something fails here first, and the fact says what that costs."""
    assert fact.check(), fact.without
    assert fact.holds()
    fact.require()


def test_there_are_no_others() -> None:
    """Keys that a test has made share the names of ours."""
    named = {fact.name: fact.is_shortcut for fact in private_facts.ALL}
    assert named == {fact.name: fact in SHORTCUTS for fact in [*SHORTCUTS, *OTHERS]}


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.16.0")
    monkeypatch.setattr(private_facts, "ALL", [])


def made(*, is_shortcut: bool, holds: bool, asked: list[str]) -> private_facts.PrivateFact:
    def check() -> bool:
        asked.append("asked")
        if not holds:
            raise AttributeError("changed")
        return True

    return private_facts.PrivateFact(
        "a test", used_in="tests", without="It is slower", is_shortcut=is_shortcut, check=check
    )


@pytest.mark.usefixtures("untried")
def test_a_torch_that_was_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    assert not made(is_shortcut=True, holds=True, asked=asked).holds()
    assert not asked
    assert made(is_shortcut=False, holds=True, asked=asked).holds()
    monkeypatch.setenv(versions.ACCEPT, "9.16")
    assert made(is_shortcut=True, holds=True, asked=asked).holds()
    assert len(asked) == 2


@pytest.mark.parametrize("is_shortcut", [True, False])
def test_a_failed_check(is_shortcut: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_facts, "ALL", [])
    asked: list[str] = []
    fact = made(is_shortcut=is_shortcut, holds=False, asked=asked)
    with pytest.warns(versions.UncheckedTorchWarning, match=r"in tests: a test\. It is slower"):
        assert not fact.holds()
    with pytest.raises(RuntimeError, match="a test"):
        fact.require()
    assert asked == ["asked"]


PROGRAM = """
import sys, warnings, torch
{change}
warnings.simplefilter("ignore")
import torchfake
from torchfake._torch import private_facts
from torchfake._torch.compiler import higher_order, scripts

def build():
    layer = torch.nn.Linear(6, 6)
    torch.nn.init.trunc_normal_(layer.weight, std=0.5)
    torch.nn.init.orthogonal_(layer.weight.data[:3])
    return torch.nn.Sequential(layer, torch.nn.Dropout(), torch.nn.TransformerEncoderLayer(8, 2))

def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(a.equal(b) for a, b in pairs)

torch.manual_seed(3)
eager, drawn = build(), torch.rand(2)
torch.manual_seed(3)
deferred = torchfake.deferred_init(build)
assert torch.rand(2).equal(drawn)
torchfake.materialize_module(deferred)
assert same(deferred, eager)
torch.manual_seed(3)
with torchfake.fake_mode():
    weight = torch.nn.init.trunc_normal_(torch.empty(1000, 1000))
    assert torch.rand(2).tolist() is not None
assert torchfake.is_fake(weight)
relied_on = {{fact.name for fact in private_facts.ALL if fact.is_shortcut and fact.holds()}}
assert relied_on == {relied_on!r}, relied_on
"""


def test_a_program_on_a_torch_that_was_never_tried() -> None:
    """It gives the values of eager mode without the shortcuts."""
    program = PROGRAM.format(change="torch.__version__ = '9.16.0'", relied_on=set())
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_torch_that_uses_a_borrowed_key() -> None:
    """It is refused before a kernel is registered that would run for tensors of torch's."""
    program = (
        "import torch, torchfake\n"
        "library = torch.library.Library('aten', 'IMPL', 'DeferredInit')\n"
        "library.impl('relu', lambda x: x)\n"
        "with torchfake.fake_mode():\n"
        "    torch.ones(3)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "RuntimeError: torch" in run.stderr
    assert "the dispatch key DeferredInit is above" in run.stderr
