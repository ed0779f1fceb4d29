"""Keeps the garbage collector of Python from traversing all of the process during a run on fakes.

Input: a run. Output: none. Invariant: afterwards the collector looks at every object again, and an
object that was made in a run is collected as it would be otherwise. A run makes objects so fast
that the collector would traverse the modules of torch and transformers several times in each: a
third of the time of a step.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def small_heap() -> Iterator[None]:
    """Context in which the collector ignores objects that existed before; it may be nested, and
    then ignores what the outer context has made too, without the garbage in it.

    Nothing is done if the program has frozen objects itself, which cannot be frozen apart.
    """
    global _depth
    if _depth:
        gc.collect()  # of what the outer context has made: frozen garbage would stay
    elif not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    gc.freeze()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth:
            gc.unfreeze()


_depth = 0  # contexts that are open; the collector is one for all threads
