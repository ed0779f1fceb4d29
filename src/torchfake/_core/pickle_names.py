"""The names by which pickles refer to functions and classes that have moved since.

Input: a function or class, and the module that it was in when it could first be pickled. Output:
pickles that name it there load. Invariant: a name in a pickle is a file format; what is published
once stays published.
"""

from __future__ import annotations

import sys
import types
from typing import Any


def publish(obj: Any, module: str) -> None:
    """Let pickles find `obj` as an attribute of the module called `module`."""
    found = sys.modules.setdefault(module, types.ModuleType(module, "Only for pickles."))
    setattr(found, obj.__name__, obj)
