"""The general procedure: meta tensors alias as the fakes do, and results are read back."""

import torch

from torchfake import fake_mode


def test_a_storage_resized_to_zero_stays_empty():
    with fake_mode():
        x = torch.randn(4)
        x.untyped_storage().resize_(0)
        assert (x.view(2, 2) + 1).shape == (2, 2)
        assert x.untyped_storage().nbytes() == 0


def test_a_product_with_weights_of_four_bits_has_its_shape() -> None:
    """torch's meta kernel (2.13) asks for the device of its own fakes."""
    with fake_mode(fake_cuda=True):
        x = torch.ones(3, 64, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(4, 1, 32, 4, dtype=torch.int32, device="cuda")
        scales = torch.empty(2, 32, 2, dtype=torch.bfloat16, device="cuda")
        found = torch.ops.aten._weight_int4pack_mm(x, weight, 32, scales)
    assert (found.shape, found.dtype, found.device.type) == ((3, 32), torch.bfloat16, "cuda")
