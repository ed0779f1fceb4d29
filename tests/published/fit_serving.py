"""Chooses the constants of an engine: ``python -m tests.published.fit_serving``.

Input: the rows of ``tests/published/serving`` of times that are chosen on. Output: the constants,
and the errors of both halves. Rounded, they are those of ``ENGINES``.

The sum of the rows' errors, as logarithms of ratios, is made small step by step: it is taken as
linear in the logarithms of the constants, with slopes by differences, and minimized by reweighted
least squares, so that no row that the model does not explain pulls them.
"""

from __future__ import annotations

import math
import sys
import warnings
from statistics import fmean

import numpy as np

from tests.published.serving import ROWS, TIMES, Row
from torchfake.distributed.passes.engines import ENGINES, Engine

MOST = {
    "weights_share": 0.92,
    "cache_share": 0.92,
    "narrow_share": 1.25,
    "fp4_share": 1.25,
    "products_share": 1.25,
    "link_share": 0.95,
}
LEAST = {"overlap": 1.0, "message_seconds": 4e-6}
KEPT = ("name", "fused", "is_eager")  # which the rows do not tell
NAMES = [name for name in Engine._fields if name not in KEPT]
_STEP, _MOST_STEP, _RIDGE = 0.1, 0.3, 0.05
_SMALL = 0.1
"""Errors of a smaller share count as their squares, larger ones as they are (Huber 1964)."""


def rows_of(kept_back: bool) -> list[Row]:
    """The rows of times of one half."""
    return [row for row in ROWS if row.kind in TIMES and row.kept_back is kept_back]


def errors(engine: Engine, kept_back: bool) -> np.ndarray:
    """How far the rows of one half are off, as logarithms of ratios."""
    return np.array([math.log(row.ratio(engine)) for row in rows_of(kept_back)])


def changed(engine: Engine, steps: dict[str, float]) -> Engine:
    """The engine whose constants are larger by these logarithms, within bounds."""
    values = {name: getattr(engine, name) * math.exp(step) for name, step in steps.items()}
    return engine._replace(
        **{n: max(min(v, MOST.get(n, math.inf)), LEAST.get(n, 0.0)) for n, v in values.items()}
    )


def _loss(found: np.ndarray) -> float:
    large = np.abs(found)
    return float(np.where(large < _SMALL, large**2 / (2 * _SMALL), large - _SMALL / 2).sum())


def fitted(engine: Engine, rounds: int) -> Engine:
    """The engine with constants of a lower mean error."""
    for _ in range(rounds):
        now = errors(engine, kept_back=False)
        moved = [errors(changed(engine, {name: _STEP}), kept_back=False) for name in NAMES]
        slopes = np.stack([(each - now) / _STEP for each in moved], axis=1)
        steps = np.zeros(len(NAMES))
        for _ in range(50):
            weights = 1 / np.maximum(np.abs(now + slopes @ steps), _SMALL)
            left = slopes.T @ (weights[:, None] * slopes) + _RIDGE * np.eye(len(NAMES))
            steps = np.linalg.solve(left, -slopes.T @ (weights * now))
        steps = np.clip(steps, -_MOST_STEP, _MOST_STEP)
        tried = [
            changed(engine, dict(zip(NAMES, (steps / n).tolist(), strict=True))) for n in (1, 2, 4)
        ]
        sums = [_loss(errors(other, kept_back=False)) for other in tried]
        print(f"{_loss(now):.4f} to {min(sums):.4f}", flush=True)  # noqa: T201
        if min(sums) >= _loss(now):
            return engine
        engine = tried[sums.index(min(sums))]
        print(engine, flush=True)  # noqa: T201
    return engine


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = fitted(ENGINES["engine"], int(sys.argv[1]) if len(sys.argv) > 1 else 4)
    for is_kept in (False, True):
        off = sorted(np.abs(errors(found, is_kept)).tolist())
        print(f"held out: {is_kept}, mean {fmean(off):.3f}, half {off[len(off) // 2]:.3f}")  # noqa: T201
