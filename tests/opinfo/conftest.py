"""How the sweeps over torch's operator database run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The samples are tiny: threads would only wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
