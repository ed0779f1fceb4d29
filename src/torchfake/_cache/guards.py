"""What a recipe depends on beyond its key: torch's default dtype, and the devices of the mode.

Input: a recipe. Output: whether it holds now. Invariant: a guard costs nothing where a recipe has
none; these values are no part of keys, since most recipes do not depend on them. Called by:
``_cache/learn``, which notes what is current; ``_cache/cache`` and ``_dispatch``, before a recipe
is used.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._cache.recipes import Recipe
from torchfake._core import modes
from torchfake._core.modes import DEFERRED_AS_META


def current_devices() -> Any:
    """What decides which devices there are, and which one ``cuda`` is."""
    state = modes.current()
    if state is None:
        return None, False
    machine = state.accelerator
    own = machine and (machine.device_type, machine.num_devices, machine.current)
    return own, True, state.mark == DEFERRED_AS_META


def guards_hold(recipe: Recipe) -> bool:
    """Whether the default dtype and the devices are those for which `recipe` was learned."""
    dtype = recipe.guard_default_dtype
    if dtype is not None and dtype is not torch.get_default_dtype():
        return False
    return recipe.guard_devices is None or recipe.guard_devices == current_devices()
