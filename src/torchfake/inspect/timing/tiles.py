"""How long a matrix product takes, tile by tile.

Input: the sizes of a product, a GPU's number of processors. Output: the share of the time in which
the processors compute elements of the result. Invariant: the shortest time of all sizes of tiles,
and of all numbers of parts into which the sums may be divided.

Each processor computes one tile of the result after the other. Tiles at the edges are partly empty;
the last wave of tiles leaves processors idle; and each tile begins with loads and ends with stores
that no arithmetic hides. A result of few tiles and long sums (the gradient of a weight) is computed
by several processors for each tile, which add up their parts (split-K; NVIDIA, CUTLASS, "Efficient
GEMM in CUDA").

Loads and stores take as long for all arithmetic. Without tensor cores, which multiply several times
as fast, less of them is in sight, and small tiles are no slower than large ones.
"""

from __future__ import annotations

import math
from functools import lru_cache

from torchfake.inspect.arithmetic.matrices import Product

_TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128),
    (64, 32), (32, 64), (32, 32), (128, 16), (16, 128),
)  # fmt: skip
"""Rows and columns of the tiles of cuBLAS's and cuDNN's kernels."""

_RATES = ((128 * 128, 1.0), (64 * 64, 0.85), (0, 0.45))
"""The share of the rate of large tiles that a tile of so many elements reaches at least in float16:
smaller tiles load more bytes for each multiply-add."""

_HIDDEN = 48
"""The multiply-adds of a sum in float16 whose time the loads and stores of a tile take."""

_STEP = 32
"""Multiply-adds that a tile does between loads: sums are computed in whole steps."""

_SHORTEST_PART = 256
"""Multiply-adds of the shortest part into which a sum is divided."""

_MOST_WAVES = 4
"""Sums are not divided further if there are tiles for so many waves."""


@lru_cache(maxsize=4096)
def share_of_peak(product: Product, num_processors: int, speed: float = 1.0) -> float:
    """The FLOPs of a product, as a share of those that the processors could do meanwhile.

    Args:
        product: the sizes.
        num_processors: of the GPU.
        speed: the peak for the product's dtype, as a multiple of that of float16.
    """
    if not product.flops:
        return 1.0
    times = (_flops_in_time(product, num_processors, speed, *tile) for tile in _TILES)
    return product.flops / min(times)


def _flops_in_time(
    product: Product, num_processors: int, speed: float, rows: int, columns: int
) -> float:
    """The FLOPs that all processors could do while tiles of a size compute a product."""
    rate = next(rate for elements, rate in _RATES if rows * columns >= elements)
    rate = min(rate / speed, 1.0)
    tiles = product.number * math.ceil(product.rows / rows) * math.ceil(product.columns / columns)
    parts, best = 1, math.inf
    while True:
        waves = math.ceil(tiles * parts / num_processors)
        length = math.ceil(product.depth / parts / _STEP) * _STEP + _HIDDEN * speed
        best = min(best, waves * num_processors * 2 * rows * columns * length / rate)
        is_short = product.depth / parts <= _SHORTEST_PART
        if is_short or not product.is_divisible or tiles * parts >= _MOST_WAVES * num_processors:
            return best
        parts *= 2
