"""One replacement of an attribute of torch, and sets of replacements.

Input: patches: an owner, a name, and a function from the original to its replacement. Output: the
attributes replaced, or the originals restored. Invariant: even if the installation of a
set is interrupted, all originals are known, and are restored when the set is removed.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

from torchfake._core import modes
from torchfake._torch import kernels
from torchfake._torch.contexts import Restoring, call_if, results


class Patch(NamedTuple):
    """An attribute, or an entry of a dict, that is to be replaced."""

    owner: Any  # a module, a class, an object, or a dict
    name: Any  # a string; the key, if the owner is a dict
    make_replacement: Callable[[Any], Any]  # from the original to its replacement


def replacing(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate a function that is called in place of an original, which it is given before the
    arguments: a maker of replacements, as :class:`Patch` takes it.
    """

    def make_replacement(original: Any) -> Any:
        @wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(original, *args, **kwargs)
            except TypeError as error:
                if not _do_not_fit(error):
                    raise
            return original(*args, **kwargs)  # whose error names it

        return replacement

    return make_replacement


def replacing_in_modes(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """The same for a function that is called on threads in a mode; on others, the original is."""

    def make_replacement(original: Any) -> Any:
        in_modes = replacing(function)(original)

        @wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return (original if modes.current() is None else in_modes)(*args, **kwargs)

        return replacement

    return make_replacement


def _do_not_fit(error: TypeError) -> bool:
    """Whether arguments did not fit a function: the error is of the frame that calls it."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


_INHERITED = object()  # the owner only inherits the attribute


def _inherited(owner: Any, name: Any) -> Any:
    """The attribute that the owner inherits, as its class stores it; None if there is none."""
    if not isinstance(owner, type):
        return None if type(owner) is dict else inspect.getattr_static(owner, name, None)
    for cls in owner.__mro__:
        if name in vars(cls):
            return vars(cls)[name]
    return None


def _restoring(owner: Any, name: str, original: Any, replacement: Any) -> Callable[[], None]:
    """A function, implemented in C, that restores `original` if `replacement` is still in place."""
    is_there = map(operator.is_, results([partial(vars(owner).get, name)]), [replacement])
    if original is _INHERITED:
        return call_if(is_there, partial(delattr, owner, name))
    return call_if(is_there, partial(setattr, owner, name, original))


class PatchSet:
    """Patches that are installed and removed together. Interrupted calls are repeated."""

    def __init__(self) -> None:
        self.is_installed = False
        # owner, name, original, replacement: of attributes that are, or are about to be, replaced
        self.originals: list[tuple[Any, Any, Any, Any]] = []
        self._made: dict[tuple[int, Any], tuple[Any, Any]] = {}  # originals and replacements

    def install(self, patches: list[Patch], to_undo: list[Callable[[], Any]] | None = None) -> None:
        """Install `patches`, unless this set is installed. Functions implemented in C that remove
        the patches are added to `to_undo`: see :mod:`torchfake._core.living`.
        """
        if self.is_installed:
            return
        self.uninstall()  # an interrupted installation
        if to_undo is not None:
            to_undo += [self.originals.clear, partial(setattr, self, "is_installed", False)]
        for owner, name, make_replacement in patches:
            own = (owner if type(owner) is dict else vars(owner)).get(name, _INHERITED)
            original = _inherited(owner, name) if own is _INHERITED else own
            known = self._made.get((id(owner), name))
            if known is None or known[0] is not original:  # making one is the slow part
                known = self._made[id(owner), name] = original, make_replacement(original)
                kernels.name_in_scripts(known[1], original)
            replacement = known[1]
            self.originals.append((owner, name, own, replacement))
            if to_undo is not None:
                to_undo.append(_restoring(*self.originals[-1]))
            if type(owner) is dict:
                owner[name] = replacement
            else:
                setattr(owner, name, replacement)
        self.is_installed = True

    def uninstall(self) -> None:
        """Restore all originals."""
        self.is_installed = False
        while self.originals:
            owner, name, original, replacement = self.originals[-1]
            is_table = type(owner) is dict
            now = (owner if is_table else vars(owner)).get(name, _INHERITED)
            if now is not replacement and (now is not _INHERITED or isinstance(original, tuple)):
                pass  # other code has set it meanwhile: CUDA was started on another thread
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
    """Context in which patches are installed on top of those that are installed already."""

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
        """Install the patches, unless they are installed."""
        self._set.install(self._patches)

    def uninstall(self) -> None:
        """Restore the attributes that the patches replace."""
        self._set.uninstall()


entered: list[Patched] = []
"""The contexts that have been entered, outermost first."""
