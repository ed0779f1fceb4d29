"""What of the fakes of a mode is still alive.

Input: a program that has been run in a mode, and whose results are dropped. Output: the fakes that
are reachable all the same, each with what holds it. Invariant: nothing is found if and only if no
storage of a fake lives, on whatever side of torch: storages hold a common sign.
"""

from __future__ import annotations

import gc
import types
from typing import Any

from torchfake._core import living
from torchfake._tensor.fake_tensor import FakeTensor

_MAX_DEPTH = 6


def leftovers() -> list[str]:
    """A line for each fake that lives, or for storages without one."""
    gc.collect()
    if living.state.find() is None:
        return []
    fakes = [each for each in gc.get_objects() if issubclass(type(each), FakeTensor)]
    found = [f"{tuple(fake.shape)}: {_holders(fake, fakes)}" for fake in fakes]
    return found or ["a storage without a fake: C++ holds it, in a graph or a constant"]


def _holders(fake: Any, fakes: list[Any]) -> str:
    """What holds a fake, and what holds that, until something has a name."""
    names: list[str] = []
    chain, at = [fake], fake
    for _ in range(_MAX_DEPTH):
        mine = {id(each) for each in (fakes, names, chain, *chain)}
        at = next((h for h in gc.get_referrers(at) if id(h) not in mine and _counts(h)), None)
        if at is None:
            break
        chain.append(at)
        names.append(_name(at))
        if isinstance(at, (types.ModuleType, type, types.FunctionType)):
            break
    return " < ".join(names) or "C++"


def _counts(holder: Any) -> bool:
    return not isinstance(holder, types.FrameType) and type(holder).__name__ != "list_iterator"


def _name(holder: Any) -> str:
    name = getattr(holder, "__qualname__", None) or getattr(holder, "__name__", None)
    if name is None and isinstance(holder, dict):
        name = str(holder.get("__name__") or list(holder)[:3])
    return f"{type(holder).__name__} {name or ''}".strip()
