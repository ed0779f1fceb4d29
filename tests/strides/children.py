"""Calls compared with eager in children, since some kernels of torch end the process.

Input: names of operators and modules, and the oracle that gives the calls of each. Output: for each
call how it differs. Invariant: eager may end a process, which is counted, and the next call runs in
a new one; a call on fakes never does. The parent runs nothing of torch: a child has none of its
threads.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Oracle(NamedTuple):
    """What gives the calls of a name, what a call gives on fakes, and how that differs."""

    cases_of: Callable[[str], Iterator[Any]]
    fake_outcome: Callable[[Any], Any]
    difference: Callable[[Any, Any], tuple[str, str] | None]


def differences_of(names: list[str], oracle: Oracle) -> Iterator[tuple[str, str | None, str]]:
    """For each call, in order, of what it is, and how it differs: the kind, and what."""
    name, index = 0, 0  # of the next call
    while True:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            _write_differences(names[name:], oracle, index, write)
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
        if kind == "crash" and not _ends_on_fakes(names[name], oracle, index - 1):
            kind = "crash of eager"  # an earlier call has written past the end of its memory
        yield names[name], kind, f"call {index}"


def _ends_on_fakes(name: str, oracle: Oracle, index: int) -> bool:
    """Whether a call on fakes alone ends its process."""
    child = os.fork()
    if not child:
        oracle.fake_outcome(next(itertools.islice(oracle.cases_of(name), index, None)))
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


_FAKES_DONE = "fakes done"

_MOST_SECONDS = 120
"""Of a call, after which its child ends as by a crash: a kernel of eager that has written past the
end of its memory may leave the lock of ``malloc`` held, which the next ``free`` waits for.
"""


def _write_differences(names: list[str], oracle: Oracle, skipped: int, pipe: int) -> None:
    status = 1
    try:
        with os.fdopen(pipe, "w", buffering=1) as out:
            for name in names:
                for i, case in enumerate(oracle.cases_of(name)):
                    if i >= skipped:
                        signal.alarm(_MOST_SECONDS)
                        fake = oracle.fake_outcome(case)
                        out.write(json.dumps([name, _FAKES_DONE, ""]) + "\n")
                        kind, text = oracle.difference(case, fake) or (None, "")
                        out.write(json.dumps([name, kind, f"{case.label}: {text}"]) + "\n")
                skipped = 0
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
