"""Scripts that decide by the device of a tensor, which C++ takes for that of the carrier."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_like, fake_mode, is_fake, materialize_tensor
from torchfake.errors import UnsupportedOpError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")

SOURCE = """
def device_of(x):
    return x.device

def compared(x):
    if device_of(x) == torch.device("cpu"):
        return x + 1
    return x + 2

def kind(x):
    if x.device.type != "cuda":
        return x + 1
    return x + 2

def is_cpu(x):
    return x + 1 if x.is_cpu else x + 2

def is_cuda(x):
    return x + 1 if x.is_cuda else x + 2

def of_two(x):
    y = torch.ones(3)
    if x.device == y.device:
        return x + y
    return x

def passed_on(x):
    return x + torch.arange(3, device=x.device)
"""
UNIT: Any = torch.jit.CompilationUnit(SOURCE)
COMPARING = ("compared", "kind", "is_cpu", "of_two")
FOLLOWING = ("is_cuda", "passed_on")


class Calling(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.script = getattr(UNIT, name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.script(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", COMPARING)
def test_a_branch_by_device_is_refused(mode: Any, name: str) -> None:
    """It would be the wrong one, in silence."""
    module = torch.jit.script(Calling(name))
    with mode():
        for call in (getattr(UNIT, name), module):
            with pytest.raises(UnsupportedOpError, match="decides by the device of a tensor"):
                call(torch.ones(3))
    assert getattr(UNIT, name)(torch.ones(3)).tolist() == [2, 2, 2]


def test_the_error_names_the_line() -> None:
    with fake_mode(), pytest.raises(UnsupportedOpError, match=r"if device_of\(x\) == torch.device"):
        UNIT.compared(torch.ones(3))


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", FOLLOWING)
def test_devices_that_C_knows_are_followed(mode: Any, name: str) -> None:
    expected = getattr(UNIT, name)(torch.ones(3))
    with mode():
        assert getattr(UNIT, name)(torch.ones(3)).tolist() == expected.tolist()


def test_fakes_on_cuda_and_outside_of_modes() -> None:
    with fake_mode(fake_cuda=True), pytest.raises(UnsupportedOpError, match="is_cuda"):
        UNIT.is_cuda(torch.ones(3, device="cuda"))
    with pytest.raises(UnsupportedOpError, match="decides by the device"):
        UNIT.kind(fake_like(torch.ones(3)))


ALIASES = """
def moved(x):
    y = x.cpu()
    y.add_(1)
    return x

def moved_by_name(x):
    y = x.to("cpu")
    y.add_(1)
    return x

def literal(x):
    return torch.tensor([1., 2., 3.], device=x.device)

def moved_literal(x):
    return x * torch.tensor([1., 2., 3.]).to(x.device)

def made(x):
    return torch.zeros(3, device=x.device)

def device(x):
    return [x.device]

def index(x):
    return x.get_device()

def words(x):
    return str(x.device), x.is_meta

def text(x):
    return "{}".format(x.device)
"""
OTHER: Any = torch.jit.CompilationUnit(ALIASES)


@pytest.mark.parametrize("name", ["moved", "moved_by_name", "literal", "moved_literal", "made"])
def test_tensors_that_a_script_moves_equal_eager(name: str) -> None:
    script = getattr(OTHER, name)
    eager = script(torch.ones(3))
    with fake_mode():
        fake = script(torch.ones(3))
        assert is_fake(fake)
        assert (fake.device, fake.tolist()) == (eager.device, eager.tolist())
    with deferred_mode():
        deferred = script(torch.ones(3))
    assert torch.equal(materialize_tensor(deferred), eager)


def test_what_a_script_makes_outside_of_modes() -> None:
    with fake_mode():
        x = torch.ones(3)
    assert OTHER.moved(x) is x
    assert is_fake(OTHER.moved_literal(x))
    for script in (OTHER.literal, OTHER.made):
        with pytest.raises(UnsupportedOpError, match=r"call the script in fake_mode\(\)"):
            script(x)
    assert OTHER.literal(torch.ones(3, device="meta")).is_meta


def test_devices_that_a_script_returns() -> None:
    eager = OTHER.device(torch.ones(3))
    with fake_mode():
        x = torch.ones(3)
        assert OTHER.device(x) == eager
        for script in (OTHER.index, OTHER.words, OTHER.text):
            with pytest.raises(UnsupportedOpError, match="decides by the device"):
                script(x)
    assert OTHER.device(x) == eager


def test_index_of_a_device() -> None:
    original = torch.get_device
    with fake_mode(fake_cuda=2):
        x, y = torch.ones(3), torch.ones(3, device="cuda:1")
        assert (torch.get_device(x), torch.get_device(input=y)) == (-1, 1)
    assert (torch.get_device(x), torch.get_device(y)) == (-1, 1)
    del x, y
    gc.collect()
    assert torch.get_device is original
