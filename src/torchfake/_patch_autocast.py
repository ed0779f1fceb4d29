"""The switches of autocast, replaced so that a mode hears of them.

Enters: the originals. Leaves: versions that tell :mod:`torchfake._function`. Invariant: each does
what the original does, on every thread. To ask torch at each call of a torch function instead would
cost a tenth of a whole operation.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfake import _function, _private
from torchfake._patches import Patch


def _telling(original: Any) -> Any:
    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _function.autocast_changed()
        return result

    return replacement


_CALLS = [n for n in dir(torch) if n.startswith("set_autocast_") and n.endswith("_enabled")]
_NAMES = [name for name in _CALLS if "cache" not in name]

PATCHES = [Patch(owner, n, _telling) for owner in (torch, _private.bindings) for n in _NAMES]
