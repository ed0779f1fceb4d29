"""The import of the libraries of a TARGET, without garbage collection.

Input: code that imports a library. Output: none. Invariant: afterwards the collector is on or off
as before. A library such as transformers makes so many objects that last, while it is imported,
that the collector would traverse all of torch's several times: a quarter of the time of the import.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Context in which nothing is collected. If it has imported anything, what it has made is then
    old, so that the next allocation does not start a collection of all of it.
    """
    if not gc.isenabled():
        yield
        return
    known = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        # unfreeze() would also thaw the program's own objects; counting them takes 20 ms
        if len(sys.modules) > known and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
