"""Which functions of Python run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def called_in(function: Callable[[], Any]) -> set[str]:
    """The names of the functions that run in a call."""
    names: set[str] = set()
    sys.setprofile(lambda frame, event, _: names.add(frame.f_code.co_name))
    try:
        function()
    finally:
        sys.setprofile(None)
    return names
