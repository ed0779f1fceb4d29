"""What the tests of fake CUDA share: its first device, and a check that CUDA is never started."""

from __future__ import annotations

from typing import Any

import pytest
import torch

CUDA = torch.device("cuda:0")


no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks for the lack of a GPU")


@pytest.fixture(autouse=True)
def cuda_is_never_started() -> Any:
    """No test may make a CUDA context."""
    started = torch.cuda.is_initialized()
    yield
    assert torch.cuda.is_initialized() is started
