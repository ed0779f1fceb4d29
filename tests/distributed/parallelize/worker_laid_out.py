"""Run on four ranks: cases of laid_out_models.py, counted as those of worker_counted.py."""

from __future__ import annotations

from tests.distributed import worker_counted
from tests.distributed.parallelize.laid_out_models import LAID_OUT
from tests.distributed.parallelize.token_layouts import TOKENS


def main(folder: str, *names: str) -> None:
    worker_counted.count(folder, {name: {**LAID_OUT, **TOKENS}[name] for name in names})
