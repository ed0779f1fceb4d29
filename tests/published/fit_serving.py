"""Chooses the constants of an engine: ``python -m tests.published.fit_serving``.

Input: the rows of ``tests/published/serving`` of times that are chosen on. Output: the constants,
by a random walk that keeps what lowers the mean error, and the errors of both halves. Rounded, they
are those of ``ENGINES``.
"""

from __future__ import annotations

import math
import random
import warnings
from statistics import fmean

from tests.published.serving import ROWS, TIMES
from torchfake.distributed.passes.engines import ENGINES, Engine

MOST = {
    "weights_share": 0.95,
    "cache_share": 0.95,
    "narrow_share": 1.25,
    "products_share": 1.25,
    "link_share": 0.95,
}
LEAST = {"overlap": 1.0}
KEPT = ("name", "fused", "is_eager")  # which the rows do not tell


def errors(engine: Engine, kept_back: bool) -> list[float]:
    """How far the rows of one half are off, as logarithms of ratios."""
    rows = [row for row in ROWS if row.kind in TIMES and row.kept_back is kept_back]
    return sorted(abs(math.log(row.ratio(engine))) for row in rows)


def fitted(engine: Engine, steps: int) -> Engine:
    """The engine with the constants of the lowest mean error that a random walk finds."""
    draw = random.Random(0)
    names = [name for name in Engine._fields if name not in KEPT]
    best = fmean(errors(engine, kept_back=False))
    for _ in range(steps):
        name = draw.choice(names)
        value = getattr(engine, name) * math.exp(draw.gauss(0, 0.15))
        value = max(min(value, MOST.get(name, math.inf)), LEAST.get(name, 0.0))
        other = engine._replace(**{name: value})
        error = fmean(errors(other, kept_back=False))
        if error < best:
            engine, best = other, error
            print(f"{error:.4f}", engine, flush=True)  # noqa: T201
    return engine


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = fitted(ENGINES["engine"], 300)
    for is_kept in (False, True):
        off = errors(found, is_kept)
        print(f"held out: {is_kept}, mean {fmean(off):.3f}, half {off[len(off) // 2]:.3f}")  # noqa: T201
