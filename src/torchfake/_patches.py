"""Functions of torch that no mode can see, replaced while a mode is on.

Enters: modes entered and left. Leaves: torch with and without the replacements. Invariants: a
replacement asks first whether *this thread* is in a mode, and otherwise is the original; when the
last mode of the process is left, every original is back. What only fake CUDA needs is replaced
only while a mode has it.
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
_INHERITED = object()  # the owner had no such attribute of its own


class _Group:
    """Replacements that come and go together, with the first and the last who need them."""

    def __init__(self) -> None:
        self.depth = 0
        self.originals: list[tuple[Any, str, Any]] = []

    def enter(self, patches: list[Patch]) -> None:
        self.depth += 1
        if self.depth > 1:
            return
        try:
            for owner, name, make in patches:
                self.originals.append((owner, name, vars(owner).get(name, _INHERITED)))
                setattr(owner, name, make(inspect.getattr_static(owner, name)))
        except BaseException:  # Ctrl-C half way through: none rather than some
            self.leave()
            raise

    def leave(self) -> None:
        self.depth -= 1
        while self.originals and not self.depth:
            owner, name, original = self.originals.pop()
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


_for_any_mode, _for_fake_cuda = _Group(), _Group()


def enter(*, fake_cuda: bool) -> None:
    """Count one more mode; the first one puts the replacements in."""
    from torchfake import _patch_autocast, _patch_cuda, _patch_devices, _patch_sources

    with _lock:
        _for_any_mode.enter(
            [*_patch_autocast.PATCHES, *_patch_sources.PATCHES, *_patch_devices.PATCHES]
        )
        if fake_cuda:
            _for_fake_cuda.enter([*_patch_cuda.PATCHES, *_patch_devices.PATCHES_FOR_FAKE_CUDA])


def leave(*, fake_cuda: bool) -> None:
    """Count one mode less; the last one brings the originals back."""
    with _lock:
        if fake_cuda:  # first, as it came last: both replace torch.asarray
            _for_fake_cuda.leave()
        _for_any_mode.leave()
