"""One replacement of an attribute of torch, and sets of replacements with a use count.

Input: patches: an owner, a name, and a function from the original to its replacement. Output: the
attributes replaced, or the originals restored. Invariant: the first use of a set installs all of
its patches or none, and the last one restores every original. Called by: ``_patches/install``;
``distributed/patches``, for the patches of a plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """One attribute to replace."""

    owner: Any
    name: str
    make_replacement: Callable[[Any], Any]  # from the original to its replacement


_INHERITED = object()  # the owner only inherits the attribute


class PatchSet:
    """Patches that are installed for their first user and removed after their last."""

    def __init__(self) -> None:
        self.num_users = 0
        self.originals: list[tuple[Any, str, Any]] = []

    def install(self, patches: list[Patch]) -> None:
        self.num_users += 1
        if self.num_users > 1:
            return
        try:
            for owner, name, make_replacement in patches:
                self.originals.append((owner, name, vars(owner).get(name, _INHERITED)))
                setattr(owner, name, make_replacement(inspect.getattr_static(owner, name)))
        except BaseException:  # Ctrl-C half way through: install none rather than some
            self.uninstall()
            raise

    def uninstall(self) -> None:
        self.num_users -= 1
        while self.originals and not self.num_users:
            owner, name, original = self.originals.pop()
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
