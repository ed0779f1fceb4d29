"""Construction of every architecture of transformers that can be built at its defaults.

``python tests/bench/sweep.py``: totals and medians of ratios, and the architectures furthest from
meta. Each is built once under each contender, on meta a second time with its weights initialized,
which transformers leaves out there. The order rotates, in one process whose cache starts empty; a
build under ``torch.device("meta")`` before those is not counted, and does the imports. With
``--again``, each is built three times, and the faster of the last two counts: what the first has
learnt is known by then.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch._subclasses import FakeTensorMode

import torchfake

OURS, META, THEIRS = "torchfake", "meta", "FakeTensorMode"
INITIALIZED_META = "meta, initialized"
"""As meta, but runs the initialization of transformers too, which it leaves out on meta."""

CONTEXTS: dict[str, Callable[[], Any]] = {
    OURS: torchfake.fake_mode,
    META: lambda: torch.device("meta"),
    INITIALIZED_META: lambda: torch.device("meta"),
    THEIRS: FakeTensorMode,
}

OF_NUMPY_TABLES = ("marian", "pegasus")
"""They fill a table in numpy, one element at a time, unless the device is meta."""

Found = dict[str, dict[str, float | None]]


def names() -> list[str]:
    return sorted(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)


def build(name: str, contender: str) -> float | None:
    """Seconds of this thread in one construction; None if it fails."""
    gc.collect()
    try:
        config = transformers.AutoConfig.for_model(name)
        start = time.thread_time()
        with CONTEXTS[contender]():
            model = transformers.AutoModel.from_config(config)
            if contender == INITIALIZED_META:
                model.initialize_weights()
        return time.thread_time() - start
    except Exception:
        return None


def build_again(name: str, contender: str) -> float | None:
    """The same of the faster of two more."""
    _, *again = (build(name, contender) for _ in range(3))
    return None if None in again else min(filter(None, again))


def measured(contenders: list[str], build: Callable[..., float | None]) -> Found:
    found = {}
    for i, name in enumerate(names()):
        if build(name, META) is None:
            continue  # no such model at its defaults
        turn = i % len(contenders)
        order = contenders[turn:] + contenders[:turn]
        found[name] = {c: build(name, c) for c in order}
    return found


def row_of(found: Found, contender: str, label: str, base: str = META) -> str:
    """How many both build, the seconds of `contender` and of `base` for those, and their ratios."""
    pairs = [
        (own, meta)
        for row in found.values()
        if (own := row[contender]) is not None and (meta := row[base]) is not None
    ]
    own, meta = (sum(seconds) for seconds in zip(*pairs, strict=True))
    median = statistics.median(own / meta for own, meta in pairs)
    return f"| {label} | {len(pairs)} | {own:.1f} | {meta:.1f} | {own / meta:.2f} | {median:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with-fake-tensor-mode", action="store_true", help="three times as long")
    parser.add_argument("--again", action="store_true", help="once all of it was built before")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    contenders = [OURS, META, INITIALIZED_META] + [THEIRS] * options.with_fake_tensor_mode
    found = measured(contenders, build_again if options.again else build)
    print(f"\n{len(found)} architectures of transformers {transformers.__version__}, CPU seconds\n")
    without = f"without {' and '.join(OF_NUMPY_TABLES)}"
    print("| | built | seconds | meta, the same | ratio | median |\n|---|---|---|---|---|---|")
    others = {name: row for name, row in found.items() if name not in OF_NUMPY_TABLES}
    for contender in contenders:
        if contender not in (META, INITIALIZED_META):
            print(row_of(found, contender, contender))
            print(row_of(others, contender, f"{contender}, {without}"))
    print(row_of(others, INITIALIZED_META, f"{INITIALIZED_META}, {without}"))
    print("\nagainst meta that is initialized:")
    print(row_of(others, OURS, f"{OURS}, {without}", INITIALIZED_META))
    worst = sorted(found, key=lambda n: (found[n][META] or 0) - (found[n][OURS] or 0))[:8]
    print("\nfurthest from meta:")
    for name in worst:
        row = found[name]
        print(f"  {name}: {row[OURS] or 0:.3f}, meta {row[META] or 0:.3f}")


if __name__ == "__main__":
    main()
