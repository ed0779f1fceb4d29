"""The oracle of leftovers: it finds what is left, and scripts and layers leave nothing."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.leftovers import torch_programs
from tests.leftovers.scan import leftovers
from tests.leftovers.worker_leftovers import MODES, error_in, outside
from torchfake import fake_mode

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


@functools.cache
def table() -> torch.Tensor:
    return torch.arange(7)


def of_this_program() -> list[str]:
    return [line for line in leftovers() if line.startswith("(7,)")]


def test_a_cached_fake_is_found() -> None:
    with fake_mode():
        table()
    assert of_this_program()
    table.cache_clear()
    assert not of_this_program()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", torch_programs.SCRIPTS)
def test_scripts_keep_no_fakes(name: str, mode: str) -> None:
    program = torch_programs.SCRIPTS[name]
    assert error_in(MODES[mode], program) is None
    assert outside(program) == []
