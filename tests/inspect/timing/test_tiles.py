"""Shares of the peak that products reach, tile by tile."""

from __future__ import annotations

import pytest

from torchfake.inspect.arithmetic.matrices import Product
from torchfake.inspect.timing.tiles import share_of_peak

SMS = 108  # of an A100


def test_large_products_reach_nearly_all() -> None:
    assert 0.9 < share_of_peak(Product(1, 8192, 8192, 8192), SMS) < 1.0


def test_short_sums_reach_less() -> None:
    shares = [share_of_peak(Product(1, 8192, 8192, depth), SMS) for depth in (32, 64, 256, 4096)]
    assert shares == sorted(shares)
    assert shares[0] < 0.45


def test_the_gradient_of_a_weight_is_divided_among_the_processors() -> None:
    """Forward, ``Linear(96, 384)`` of 802,816 rows has 18,816 tiles; its weight's gradient has 3."""
    forward = share_of_peak(Product(1, 802_816, 384, 96), SMS)
    backward = share_of_peak(Product(1, 384, 96, 802_816), SMS)
    assert 0.5 < backward / forward < 2
    whole = Product(1, 384, 96, 802_816, is_divisible=False)
    assert share_of_peak(whole, SMS) < 0.25 * backward


@pytest.mark.parametrize("rows", [1, 129, 8192])
def test_no_share_is_above_the_peak(rows: int) -> None:
    for columns in (1, 33, 512):
        for depth in (1.5, 64, 100_000):
            assert 0 < share_of_peak(Product(2, rows, columns, depth), SMS) <= 1


def test_what_has_no_elements() -> None:
    assert share_of_peak(Product(0, 128, 128, 64), SMS) == 1.0


def test_slower_arithmetic_hides_loads_and_small_tiles() -> None:
    small = Product(1, 512, 256, 256)
    assert share_of_peak(small, SMS, 1 / 16) > 1.2 * share_of_peak(small, SMS)
    assert share_of_peak(small, SMS, 1 / 16) <= 1
