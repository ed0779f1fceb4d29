"""What tests of recording share: a count of the operations that live."""

from __future__ import annotations

import gc

from torchfake._graph.operations import Op


def live_ops() -> int:
    """The number of recorded operations that are referenced."""
    gc.collect()
    return sum(type(obj) is Op for obj in gc.get_objects())
