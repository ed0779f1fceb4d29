"""autoray finds the functions of torch by the module of a tensor's class."""

from __future__ import annotations

import autoray
import torch

from tests.programs import assert_program
from torchfake import fake_mode


def test_the_backend_is_torch() -> None:
    with fake_mode():
        for tensor in (torch.ones(3), torch.nn.Parameter(torch.ones(3))):
            assert autoray.infer_backend(tensor) == "torch"


def test_functions_are_torchs() -> None:
    assert_program(lambda: autoray.do("sum", torch.randn(3, 4), axis=0))
    assert_program(lambda: autoray.do("tensordot", torch.randn(3, 4), torch.randn(4, 5), axes=1))
