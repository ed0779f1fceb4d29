"""The general procedure: meta tensors alias as the fakes do, and results are read back."""

import torch

from torchfake import fake_mode


def test_a_storage_resized_to_zero_stays_empty():
    with fake_mode():
        x = torch.randn(4)
        x.untyped_storage().resize_(0)
        assert (x.view(2, 2) + 1).shape == (2, 2)
        assert x.untyped_storage().nbytes() == 0
