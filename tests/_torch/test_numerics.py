"""Settings that change values: read, and applied for a time."""

from __future__ import annotations

import pytest
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


def _effective(kind: str) -> tuple[object, ...]:
    return tuple(get() for get in numerics._effective[kind])


@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_products(kind: str) -> None:
    owner = getattr(torch.backends.mkldnn, kind)
    previous, before = owner.fp32_precision, _effective(kind)
    kept: numerics.ProductSettings = numerics.current_for_products(kind)
    assert numerics.current_for_products(kind) is kept  # read once
    owner.fp32_precision = "bf16"
    try:
        reduced = _effective(kind)
        assert numerics.current_for_products(kind) != kept
        with numerics.applied(numerics.current(), kept):
            assert _effective(kind) == before
        assert _effective(kind) == reduced
        with numerics.applied(numerics.current(), None):
            assert _effective(kind) == reduced
    finally:
        owner.fp32_precision = previous
    with numerics.applied(numerics.current(), kept):
        assert _effective(kind) == before


def test_the_precision_of_all_backends_is_that_of_each_kind() -> None:
    previous = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    try:
        kept = numerics.current_for_products("matmul")
        torch._C._set_fp32_precision_setter("mkldnn", "all", "bf16")
        assert numerics.current_for_products("matmul") != kept
        torch._C._set_fp32_precision_setter("mkldnn", "all", "none")
        assert numerics.current_for_products("matmul") is kept
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", "all", "none")
        torch.backends.mkldnn.matmul.fp32_precision = previous


def test_recurrent_layers_know_the_grad_mode() -> None:
    with torch.no_grad():
        without = numerics.current_for_products("rnn")
    assert without != numerics.current_for_products("rnn")
    with numerics.applied(numerics.current(), without):
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_casts_inside_of_a_kernel() -> None:
    """What is recorded where autocast is on switches it on for the replay, and off again."""
    before = torch.get_autocast_dtype("cpu")
    settings = numerics.current_for_products("matmul", ("cpu", torch.float16))
    assert numerics.current_for_products("matmul") != settings
    with numerics.applied(numerics.current(), settings):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.float16
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") is before
