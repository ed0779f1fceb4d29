"""All operators and modules in all arrangements: ``python -m tests.strides.sweep``.

Input: how many samples, which part, where to write. Output: a table of what differs, by operator;
exit code 1 if anything does that `shortfalls` does not name.

Calls run in a child: some kernels of torch end the process. Such a call is counted, and the next
one runs in a new child. Eager may end it; a call on fakes never does. The parent runs nothing of
torch, since a child has none of its threads.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.strides.calls import NAMES, cases_of
from tests.strides.outcomes import difference, fake_outcome
from tests.strides.shortfalls import ACCEPTED, KINDS, LAID_OUT


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table: dict[str, dict[str, list[str]]] = {}
    total = 0
    start = time.time()
    names = options.names or NAMES[options.part :: options.parts]
    for name, kind, text in _in_processes(names, options.limit, options.step):
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
            if not _is_known(name, kind)
        ]
    print(
        f"{total} calls of {len(names)} names in {time.time() - start:.0f} s; "
        f"differ: {dict(counts)}"
    )
    print("\n".join(unknown) or "nothing that shortfalls does not name")
    return bool(unknown)


def _is_known(name: str, kind: str) -> bool:
    """Whether `shortfalls` says why."""
    return kind in KINDS or name in (ACCEPTED if kind == "accepted" else LAID_OUT)


def _in_processes(
    names: list[str], limit: int | None, step: int
) -> Iterator[tuple[str, str | None, str]]:
    """For each call, or one in `step`, of what it is, and how it differs: the kind, and what."""
    name, index = 0, 0  # of the next call
    while True:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            _write_differences(names[name:], limit, index, step, write)
        os.close(write)
        with os.fdopen(read) as lines:
            kind = "crash"
            for line in lines:
                if (called := json.loads(line))[0] != names[name]:
                    name, index = names.index(called[0]), 0
                kind = "crash of eager" if called[1] == _FAKES_DONE else "crash"
                if called[1] != _FAKES_DONE:
                    index += 1
                    yield tuple(called)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            assert status == 0
            return
        index += 1
        if kind == "crash" and not _ends_on_fakes(names[name], limit, step, index - 1):
            kind = "crash of eager"  # an earlier call has written past the end of its memory
        yield names[name], kind, f"call {index}"


def _ends_on_fakes(name: str, limit: int | None, step: int, index: int) -> bool:
    """Whether a call on fakes alone ends its process."""
    child = os.fork()
    if not child:
        fake_outcome(next(itertools.islice(cases_of(name, limit, step), index, None)))
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


_FAKES_DONE = "fakes done"


def _write_differences(
    names: list[str], limit: int | None, skipped: int, step: int, pipe: int
) -> None:
    status = 1
    try:
        with os.fdopen(pipe, "w", buffering=1) as out:
            for name in names:
                for i, case in enumerate(cases_of(name, limit, step)):
                    if i >= skipped:
                        fake = fake_outcome(case)
                        out.write(json.dumps([name, _FAKES_DONE, ""]) + "\n")
                        kind, text = difference(case, fake) or (None, "")
                        out.write(json.dumps([name, kind, f"{case.label}: {text}"]) + "\n")
                skipped = 0
        status = 0
    finally:
        os._exit(status)


def _options() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--step", type=int, default=1, help="run one arrangement in STEP")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
