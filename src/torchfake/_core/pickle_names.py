"""The names by which pickles refer to functions and classes that have moved since.

Input: a function or class, or a module of them, and the module in which it could first be pickled.
Output: pickles with the first name load. Invariant: a name in a pickle is a file format; a
published name stays published.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


def publish(obj: Any, module: str) -> None:
    """Let pickles find `obj` as an attribute of the module called `module`."""
    found = sys.modules.setdefault(module, types.ModuleType(module, "Only for pickles."))
    setattr(found, obj.__name__, obj)


class _Moved(types.ModuleType):
    """Stands for a module that has moved, and is imported when something of it is asked for."""

    home: str  # where it is now

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.home), name)


def publish_module(home: str, module: str) -> None:
    """Let pickles find what the module `home` has in `module`, where it was."""
    parts = module.split(".")
    for i in range(2, len(parts)):
        package = ".".join(parts[:i])
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:  # a package that is no more
            sys.modules[package] = types.ModuleType(package, "Only for pickles.")
    moved = _Moved(module, "Only for pickles.")
    moved.home = home
    sys.modules.setdefault(module, moved)
