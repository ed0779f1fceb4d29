"""Caches of torch and of transformers, which keep nothing of a mode when it is left.

Input: the modes of the process, entered and left; attributes that distributions compute once.
Output: caches without fakes, replacements or fake devices. Invariant: what was cached before the
first mode stays, as do attributes of distributions that hold fakes themselves.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from typing import Any

import torch.distributions.utils
from torch.nn.utils import parametrize

from torchfake._patches.patch import Patch, replacing_in_modes
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends


class Caches:
    """The caches of functions, and of parametrized tensors in ``parametrize.cached()``."""

    def __init__(self) -> None:
        self._misses: dict[Any, int] = {}

    def note(self) -> None:
        """Note the state of the caches before functions are replaced."""
        self._misses.clear()
        for cached in _of_functions():
            self._misses[cached] = cached.cache_info().misses

    def forget_new(self) -> None:
        """Clear the caches that were added to since :meth:`note`."""
        for cached in _of_functions():
            if cached.cache_info().misses != self._misses.get(cached, 0):
                cached.cache_clear()
        values = parametrize._cache
        for key in [key for key, value in values.items() if isinstance(value, FakeTensor)]:
            values.pop(key, None)


_OF_MODELS = ("modeling_", "modular_", "image_processing_")


def _of_functions() -> list[Any]:
    found = backends.caches_of_functions()
    for module in _modules_of_models(len(sys.modules)):
        found += _caches_in(module, len(vars(module)))
    return found


@functools.lru_cache(maxsize=1)
def _modules_of_models(_num_modules: int) -> list[types.ModuleType]:
    """Modules of transformers whose functions cache tables; searched anew after imports."""
    found = [name for name in sys.modules.copy() if name.startswith("transformers.models.")]
    return [sys.modules[n] for n in found if n.rpartition(".")[2].startswith(_OF_MODELS)]


@functools.lru_cache(maxsize=1024)
def _caches_in(module: types.ModuleType, _num_names: int) -> list[Any]:
    """The caches of the functions of a module, and of the methods of its classes."""
    named = [*vars(module).values()]
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            named += vars(value).values()
    return [cached for value in named for cached in _caches_of(value)]


def _caches_of(value: Any) -> list[Any]:
    """`value`, or what a function that it wraps refers to, if that is a function with a cache."""
    function = value.__func__ if isinstance(value, staticmethod) else value
    found = [function]
    if isinstance(function, types.FunctionType):
        found += gc.get_referents(*(function.__closure__ or ()))
    return [each for each in found if isinstance(each, functools._lru_cache_wrapper)]


@replacing_in_modes
def _computed_once(original: Any, /, self: Any, instance: Any, *args: Any) -> Any:
    """``lazy_property.__get__``: a distribution of real tensors keeps no fake."""
    value = original(self, instance, *args)
    if instance is not None and isinstance(value, FakeTensor):
        name, attributes = self.wrapped.__name__, vars(instance)
        held = [v for n, v in attributes.items() if n != name and isinstance(v, FakeTensor)]
        if not held and attributes.get(name) is value:
            delattr(instance, name)
    return value


PATCHES = [Patch(torch.distributions.utils.lazy_property, "__get__", _computed_once)]
