"""The names by which pickles refer to functions and classes that have moved since.

Input: a function, a class or a module, and the name of the module that first published it. Output:
pickles with that name load. Invariant: names in pickles are a file format: a published name stays
published.
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
    """A stand-in for a module that has moved. Reading an attribute imports the module."""

    home: str  # the present name of the module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.home), name)


def publish_module(home: str, module: str) -> None:
    """Let pickles find the attributes of the module `home` under its old name `module`."""
    parts = module.split(".")
    for i in range(2, len(parts)):
        package = ".".join(parts[:i])
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:  # the old package does not exist
            sys.modules[package] = types.ModuleType(package, "Only for pickles.")
    moved = _Moved(module, "Only for pickles.")
    moved.home = home
    sys.modules.setdefault(module, moved)
