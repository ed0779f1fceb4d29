"""Setting the state of a generator, to a fake of known value too.

Input: ``torch.Generator.set_state``. Output: a version that reads fakes, and after which draws
start again from there: the same state may be set again. Invariant: a fake that the original refuses
for its device or dtype is refused by it. Called by: ``_patches/install``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfake._core import modes
from torchfake._patches.patch import Patch
from torchfake._random import streams
from torchfake._random.fake_generators import FakeGenerator
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import python_functions

_Generator = torch.Generator  # the name may refer to a stand-in


class _Methods:
    """The methods of ``torch.Generator`` as an object with attributes: the type is one of C++."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return dict(vars(_Generator))

    def __setattr__(self, name: str, method: Any) -> None:
        python_functions.set_method_of_c_type(_Generator, name, method)


def _set_state(original: Any) -> Any:
    """``torch.Generator.set_state``: C++ reads the memory of the state without a dispatch."""

    @functools.wraps(original)
    def set_state(generator: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_readable, args))
        result = original(generator, *args, **kwargs)
        if modes.current() is not None and not isinstance(generator, FakeGenerator):
            if generator is torch.default_generator:
                modes.reset_forked_generator()
            streams.reset(generator)
        return result

    return set_state


def _readable(state: Any) -> Any:
    """The real tensor of a fake that C++ would accept; anything else as it is."""
    if (
        not isinstance(state, FakeTensor)
        or state.device.type != "cpu"
        or state.dtype != torch.uint8
    ):
        return state
    return known_values.read_value(state, "Generator.set_state()")


PATCHES = [Patch(_Methods(), "set_state", _set_state)]
