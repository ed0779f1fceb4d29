"""One replacement of an attribute of torch, and sets of replacements.

Input: patches: an owner, a name, and a function from the original to its replacement. Output: the
attributes replaced, or the originals restored. Invariant: whatever interrupted the installation of
a set, the original of all that is replaced is known, and is restored when the set is removed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torchfake._torch import kernels
from torchfake._torch.contexts import Restoring


class Patch(NamedTuple):
    """One attribute to replace, or one entry of a table."""

    owner: Any  # a module, a class, an object, or a dict
    name: Any  # a string; the key, if the owner is a dict
    make_replacement: Callable[[Any], Any]  # from the original to its replacement


_INHERITED = object()  # the owner only inherits the attribute


def _inherited(owner: Any, name: Any) -> Any:
    """What the owner inherits under this name, as it is in its class; None if there is nothing."""
    if not isinstance(owner, type):
        return None if type(owner) is dict else inspect.getattr_static(owner, name, None)
    for cls in owner.__mro__:
        if name in vars(cls):
            return vars(cls)[name]
    return None


class PatchSet:
    """Patches that are installed and removed together. An interrupted call is made again."""

    def __init__(self) -> None:
        self.is_installed = False
        # of what is replaced, or about to be, and the replacement
        self.originals: list[tuple[Any, Any, Any, Any]] = []
        self._made: dict[tuple[int, Any], tuple[Any, Any]] = {}  # originals and replacements

    def install(self, patches: list[Patch]) -> None:
        """Install `patches`, if they are not installed."""
        if self.is_installed:
            return
        self.uninstall()  # what was begun
        for owner, name, make_replacement in patches:
            own = (owner if type(owner) is dict else vars(owner)).get(name, _INHERITED)
            original = _inherited(owner, name) if own is _INHERITED else own
            known = self._made.get((id(owner), name))
            if known is None or known[0] is not original:  # to make one takes longer than the rest
                known = self._made[id(owner), name] = original, make_replacement(original)
                kernels.name_in_scripts(known[1], original)
            replacement = known[1]
            self.originals.append((owner, name, own, replacement))
            if type(owner) is dict:
                owner[name] = replacement
            else:
                setattr(owner, name, replacement)
        self.is_installed = True

    def uninstall(self) -> None:
        """Restore the originals of all that is installed."""
        self.is_installed = False
        while self.originals:
            owner, name, original, replacement = self.originals[-1]
            is_table = type(owner) is dict
            now = (owner if is_table else vars(owner)).get(name, _INHERITED)
            if now is not replacement and (now is not _INHERITED or isinstance(original, tuple)):
                pass  # it is what somebody has set meanwhile: CUDA was started on another thread
            elif original is not _INHERITED and is_table:
                owner[name] = original
            elif original is not _INHERITED:
                setattr(owner, name, original)
            elif is_table:
                owner.pop(name, None)
            elif name in vars(owner):
                delattr(owner, name)
            self.originals.pop()


class Patched(Restoring):
    """Context in which patches are installed, of their own: they wrap those that are already."""

    def __init__(self, patches: list[Patch]) -> None:
        self._patches = patches
        self._set = PatchSet()

    def change(self) -> None:
        entered.append(self)
        self.install()

    def restore(self) -> None:
        if self in entered:
            entered.remove(self)
        self.uninstall()

    def install(self) -> None:
        """Install them, if they are not installed."""
        self._set.install(self._patches)

    def uninstall(self) -> None:
        """Restore what they wrap."""
        self._set.uninstall()


entered: list[Patched] = []
"""The contexts that have been entered, outermost first."""
