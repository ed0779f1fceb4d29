"""All operators and modules in all arrangements: ``python -m tests.strides.sweep``.

Input: how many samples, which part, where to write. Output: a table of what differs, by operator;
exit code 1 if anything does that `shortfalls` does not name.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.strides import outcomes, outputs
from tests.strides.calls import NAMES, cases_of
from tests.strides.children import Oracle, differences_of
from tests.strides.shortfalls import ACCEPTED, KINDS, LAID_OUT, OUTPUTS


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table: dict[str, dict[str, list[str]]] = {}
    total = 0
    start = time.time()
    names = options.names or _names(options)[options.part :: options.parts]
    for name, kind, text in differences_of(names, _oracle(options)):
        total += 1
        if kind:
            table.setdefault(name, {}).setdefault(kind, []).append(text)
        if options.out and not total % 1000:
            options.out.write_text(json.dumps(table, indent=1))
            print(total, name, len(table), f"{time.time() - start:.0f}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(table, indent=1))
    counts: collections.Counter[str] = collections.Counter()
    unknown = []
    for name, found in table.items():
        counts.update({kind: len(texts) for kind, texts in found.items()})
        unknown += [
            f"{name}, {kind}: {texts[0]}"
            for kind, texts in found.items()
            if not _is_known(name, kind, options.outputs)
        ]
    print(
        f"{total} calls of {len(names)} names in {time.time() - start:.0f} s; "
        f"differ: {dict(counts)}"
    )
    print("\n".join(unknown) or "nothing that shortfalls does not name")
    return bool(unknown)


def _names(options: Any) -> list[str]:
    return outputs.OUTPUT_NAMES if options.outputs else NAMES


def _oracle(options: Any) -> Oracle:
    compared: Any = outputs if options.outputs else outcomes
    cases = outputs.out_cases_of if options.outputs else cases_of
    made = partial(cases, limit=options.limit, step=options.step)
    return Oracle(made, compared.fake_outcome, compared.difference)


def _is_known(name: str, kind: str, has_outputs: bool) -> bool:
    """Whether `shortfalls` says why."""
    if has_outputs:
        return kind in KINDS or name in OUTPUTS
    return kind in KINDS or name in (ACCEPTED if kind == "accepted" else LAID_OUT)


def _options() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--outputs", action="store_true", help="calls with out= instead")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--step", type=int, default=1, help="run one arrangement in STEP")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
