"""Settings that change values: read, and applied for a time."""

from __future__ import annotations

import torch

from torchfake._torch import numerics


def test_current_and_applied() -> None:
    before = numerics.current()
    assert isinstance(before, numerics.Numerics)
    assert numerics.current() is before
    assert before.default_dtype == torch.get_default_dtype()
    other = before._replace(
        default_dtype=torch.float64, flushes_denormals=True, num_threads=before.num_threads + 1,
        deterministic=(False, True), has_onednn=False,
    )  # fmt: skip
    with numerics.applied(other):
        assert numerics.current() == other
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.mkldnn.enabled
        assert torch.get_num_threads() == other.num_threads
        assert (torch.full((3,), 1e-39, dtype=torch.float32) * 1 == 0).all()
    assert numerics.current() is before


def test_denormals() -> None:
    assert not numerics.flushes_denormals()
    with numerics.denormals_flushed(True):
        assert numerics.flushes_denormals()
        assert numerics.current().flushes_denormals
    assert not numerics.flushes_denormals()


def test_products() -> None:
    before = numerics.current_for_products()
    kept: numerics.ProductSettings = before
    torch.set_float32_matmul_precision("medium")
    try:
        medium = numerics.current_for_products()
        assert medium != before
        with numerics.applied_to_products(kept):
            assert numerics.current_for_products() == before
            assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"
        assert numerics.current_for_products() == medium
    finally:
        torch.set_float32_matmul_precision("highest")
        with numerics.applied_to_products(None):
            pass
    with numerics.applied_to_products(before):
        assert numerics.current_for_products() == before
