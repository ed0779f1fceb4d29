"""Arguments that do not fit a function which is replaced in a mode: the error is torch's own."""

import pytest
import torch

from tests.conftest import refused_as_in_eager
from torchfake import deferred_mode, fake_mode

CALLS = {
    "tensor": lambda: torch.tensor(),
    "Generator": lambda: torch.Generator(foo=1),
    "Generator of two": lambda: torch.Generator("cpu", 2),
    "device": lambda: torch.device(foo=1),
    "as_tensor": lambda: torch.as_tensor(),
    "as_tensor of a keyword": lambda: torch.as_tensor([1], foo=2),
    "load": lambda: torch.load(),
    "set_rng_state": lambda: torch.set_rng_state(),
    "get_rng_state": lambda: torch.get_rng_state(1),
    "manual_seed": lambda: torch.manual_seed(),
    "Parameter": lambda: torch.nn.Parameter(foo=1),
}


@pytest.mark.parametrize("mode", [fake_mode, lambda: fake_mode(fake_cuda=True), deferred_mode])
@pytest.mark.parametrize("name", CALLS)
def test_name_torch_s_function(name, mode):
    error = refused_as_in_eager(CALLS[name], mode, TypeError)
    assert error.__context__ is None
