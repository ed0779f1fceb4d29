"""Functions of torch that no mode can see, replaced while a mode is on.

Enters: modes entered and left. Leaves: torch with and without the replacements. Invariants: a
replacement asks first whether *this thread* is in a mode, and otherwise is the original; when the
last mode of the process is left, every original is back.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """One attribute to replace."""

    owner: Any
    name: str
    make: Callable[[Any], Any]  # the original -> its replacement


_lock = threading.Lock()
_depth = 0
_INHERITED = object()  # the owner had no such attribute of its own
_originals: list[tuple[Any, str, Any]] = []


def all_patches() -> list[Patch]:
    """Every replacement there is."""
    from torchfake import _patch_cuda, _patch_devices, _patch_sources

    return [*_patch_sources.PATCHES, *_patch_cuda.PATCHES, *_patch_devices.PATCHES]


def enter() -> None:
    """Count one more mode; the first one puts the replacements in."""
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            for owner, name, make in all_patches():
                _originals.append((owner, name, vars(owner).get(name, _INHERITED)))
                setattr(owner, name, make(inspect.getattr_static(owner, name)))


def leave() -> None:
    """Count one mode less; the last one brings the originals back."""
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            while _originals:
                owner, name, original = _originals.pop()
                if original is _INHERITED:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
