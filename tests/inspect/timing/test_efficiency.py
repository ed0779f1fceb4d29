"""Rates that a GPU has for some kinds of work and not for others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchfake import profiles
from torchfake.inspect.arithmetic.matrices import Product
from torchfake.inspect.timing.efficiency import KERNEL_SECONDS, seconds_of, shares_of
from torchfake.inspect.timing.hardware import HARDWARE
from torchfake.inspect.timing.tiles import share_of_peak
from torchfake.inspect.timing.work import Work, rounds_to_tf32

LARGE = (Product(1, 8192, 8192, 8192),)
CONVOLUTION = Work("convolutions", 2 * 8192**3, 10, torch.float32, products=LARGE, is_tf32=True)


def seconds(work: Work, gpu: str = "a100-80gb") -> float:
    profile, hardware = profiles()[gpu], HARDWARE[gpu]
    assert hardware is not None
    return seconds_of(work, profile, hardware, shares_of(profile)) - KERNEL_SECONDS


@pytest.fixture
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_float32_has_the_rate_of_tf32_where_it_is_allowed(precision: None) -> None:
    """Of cuDNN's convolutions it is by default: SDXL in fp32 took five times as long as published."""
    assert rounds_to_tf32(is_convolution=True)
    assert not rounds_to_tf32(is_convolution=False)
    torch.set_float32_matmul_precision("high")
    assert rounds_to_tf32(is_convolution=False)
    exact = CONVOLUTION._replace(is_tf32=False)
    a100 = profiles()["a100-80gb"]
    shares, (product,), processors = shares_of(a100), LARGE, a100.multi_processor_count
    rounded = 312 / 2 * shares.products * share_of_peak(product, processors)
    whole = 19.5 * shares.vector * share_of_peak(product, processors, 19.5 / 312)
    assert seconds(exact) / seconds(CONVOLUTION) == pytest.approx(rounded / whole)
    assert seconds(CONVOLUTION, "v100-16gb") == seconds(exact, "v100-16gb")


def test_rows_that_are_no_whole_vectors_and_small_batches_are_slower() -> None:
    whole = CONVOLUTION._replace(dtype=torch.float16, is_tf32=False)
    odd = whole._replace(products=(LARGE[0]._replace(is_aligned=False),))
    batch = whole._replace(products=(LARGE[0]._replace(number=2),))
    shares = shares_of(profiles()["a100-80gb"])
    assert seconds(odd) == pytest.approx(seconds(whole) / shares.unaligned)
    assert seconds(batch) == pytest.approx(2 * seconds(whole) / shares.batched, rel=0.01)


def test_tensors_that_fit_into_the_cache_move_faster() -> None:
    """Half of the 72 MiB of an RTX 4090 is filled by 30 MiB, not of the 40 MiB of an A100."""
    small = Work("elementwise", 0, 30 << 20, torch.float16)
    large = small._replace(num_bytes=300 << 20)
    assert 10 * seconds(small, "rtx4090-24gb") < 0.4 * seconds(large, "rtx4090-24gb")
    assert 10 * seconds(small) == pytest.approx(seconds(large))
    weights = small._replace(kind="matrix products")  # are not what the operator before has written
    assert 10 * seconds(weights, "rtx4090-24gb") == pytest.approx(seconds(large, "rtx4090-24gb"))


def test_elements_that_are_read_one_by_one_are_slower() -> None:
    for kind in ("elementwise", "copies"):
        whole = Work(kind, 0, 1 << 30, torch.float16)
        assert seconds(whole._replace(is_uniform=False)) > 1.2 * seconds(whole)


def test_the_gradient_of_a_depthwise_convolution_is_slow() -> None:
    forward = Work("depthwise convolutions", 10**9, 1 << 30, torch.float16)
    assert seconds(forward._replace(is_backward=True)) > 3 * seconds(forward)


def test_without_tensor_cores_large_products_reach_most_of_the_peak() -> None:
    exact = CONVOLUTION._replace(is_tf32=False)
    for gpu in ("v100-16gb", "a100-80gb", "h100-80gb"):
        hardware = HARDWARE[gpu]
        assert hardware is not None
        share = exact.flops / seconds(exact, gpu) / hardware.vector_flops
        assert 0.75 < share <= 0.80


def test_filters_of_three_by_three_multiply_fewer_numbers_without_tensor_cores() -> None:
    exact = CONVOLUTION._replace(is_tf32=False)
    assert seconds(exact._replace(has_short_filters=True)) < 0.7 * seconds(exact)
    for other in (CONVOLUTION, exact._replace(dtype=torch.float16)):
        assert seconds(other._replace(has_short_filters=True)) == seconds(other)


def test_tensor_cores_read_images_whose_channels_are_apart_in_another_layout() -> None:
    """Of timm's convolutional networks on an RTX 4090, NCHW takes up to a third longer than NHWC."""
    large = CONVOLUTION._replace(num_bytes=1 << 30)
    apart = large._replace(is_channels_first=True)
    assert seconds(apart) > seconds(large)
    assert seconds(apart, "v100-16gb") == seconds(large, "v100-16gb")  # has no TF32
