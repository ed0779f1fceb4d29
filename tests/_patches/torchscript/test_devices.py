"""Scripts that decide by the device of a tensor, which C++ takes for that of the carrier."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_like, fake_mode
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
