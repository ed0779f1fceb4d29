"""The functions that switch autocast, replaced so that a mode notices.

Input: the originals. Output: versions that also tell ``_tensor/torch_function``, which keeps for
each thread whether autocast is on. Invariant: each does what the original does, on every thread.

Querying torch at each call of a torch function instead would cost a tenth of a whole operation.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._patches.patch import Patch, replacing
from torchfake._tensor import torch_function
from torchfake._torch import backends


@replacing
def _updating_override(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    try:
        if _switches_on(args, kwargs):
            torch_function.expect_autocast()
            return original(*args, **kwargs)  # last: a later interrupt would leave autocast on
        original(*args, **kwargs)
        torch_function.update_override()
    except BaseException as error:
        if not isinstance(error, Exception) and not _switches_on(args, kwargs):
            original(*args, **kwargs)  # torch's ``__exit__`` calls it only once
        raise
    return None


def _switches_on(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True in args or True in kwargs.values()


_SWITCHES = [
    name
    for name in dir(torch)
    if name.startswith("set_autocast_") and name.endswith("_enabled") and "cache" not in name
]

PATCHES = [
    Patch(owner, name, _updating_override)
    for owner in (torch, backends.bindings)
    for name in _SWITCHES
]
