"""Construction of every architecture of transformers that can be built at its defaults.

``python tests/bench/sweep.py``: totals, and the architectures furthest from the total's ratio. Each
is built once under each contender, in an order that rotates, in one process whose cache starts
empty; a build under ``torch.device("meta")`` before those is not counted, and does the imports.
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch._subclasses import FakeTensorMode

import torchfake

OURS, META, THEIRS = "torchfake", "meta", "FakeTensorMode"
CONTEXTS: dict[str, Callable[[], Any]] = {
    OURS: torchfake.fake_mode,
    META: lambda: torch.device("meta"),
    THEIRS: FakeTensorMode,
}


def names() -> list[str]:
    return sorted(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)


def build(name: str, context: Callable[[], Any]) -> float | None:
    """Seconds of one construction; None if it fails."""
    gc.collect()
    try:
        config = transformers.AutoConfig.for_model(name)
        start = time.perf_counter()
        with context():
            transformers.AutoModel.from_config(config)
        return time.perf_counter() - start
    except Exception:
        return None


def measured(contenders: list[str]) -> dict[str, dict[str, float | None]]:
    found = {}
    for i, name in enumerate(names()):
        if build(name, CONTEXTS[META]) is None:
            continue  # no such model at its defaults
        turn = i % len(contenders)
        order = contenders[turn:] + contenders[:turn]
        found[name] = {c: build(name, CONTEXTS[c]) for c in order}
    return found


def total(found: dict[str, dict[str, Any]], contender: str) -> tuple[int, float, float]:
    """How many both build, and the seconds of `contender` and of meta for those."""
    rows = [row for row in found.values() if row[contender] is not None]
    return len(rows), sum(row[contender] for row in rows), sum(row[META] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with-fake-tensor-mode", action="store_true", help="three times as long")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    contenders = [OURS, META] + [THEIRS] * options.with_fake_tensor_mode
    found = measured(contenders)
    print(f"\n{len(found)} architectures of transformers {transformers.__version__}, seconds\n")
    print("| | built | seconds | meta, the same | ratio |\n|---|---|---|---|---|")
    for contender in contenders:
        if contender != META:
            count, own, meta = total(found, contender)
            print(f"| {contender} | {count} | {own:.1f} | {meta:.1f} | {own / meta:.2f} |")
    worst = sorted(found, key=lambda n: (found[n][META] or 0) - (found[n][OURS] or 0))[:8]
    print("\nfurthest from meta:")
    for name in worst:
        row = found[name]
        print(f"  {name}: {row[OURS] or 0:.3f}, meta {row[META] or 0:.3f}")


if __name__ == "__main__":
    main()
