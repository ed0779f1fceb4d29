"""Functions that set and read the state of the global generator, and that draw until it fits.

Input: the originals. Output: versions that do so in the lazy generator of a plain mode, and in what
a deferred mode has recorded. Invariant: outside a mode, or on another thread, each is the original.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfake._core import modes
from torchfake._operators import random_values
from torchfake._patches.patch import Patch
from torchfake._random import lazy_generators, mt19937, recorded_draws
from torchfake._recording import generator_sync
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import dispatcher


def _seeding_draws(original: Any) -> Any:
    """``torch.manual_seed``: draws start again from there. To compare states is not enough: the
    same seed may be set again.
    """

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        lazy_generators.position().restart()
        recorded_draws.reset(torch.default_generator)
        return result

    return replacement


def _setting_draws(original: Any) -> Any:
    """``torch.set_rng_state``: draws start again from there. A state may be a fake of known value,
    whose memory C++ would read without a dispatch.
    """

    @functools.wraps(original)
    def replacement(new_state: Any) -> None:
        state = modes.current()
        if state is None or state.mark:
            original(_readable(new_state, original))
            recorded_draws.reset(torch.default_generator)
            lazy_generators.position().restart()
        else:
            lazy_generators.position().set_state(_readable(new_state, original), original)

    return replacement


def _readable(state: Any, function: Any) -> Any:
    """The real tensor of a fake that C++ would accept; anything else as it is."""
    if not isinstance(state, FakeTensor):
        return state
    if state.device.type != "cpu" or state.dtype != torch.uint8:
        return state
    return known_values.read_value(state, f"{function.__name__}()")


def _settling_draws(original: Any) -> Any:
    """``torch.get_rng_state``: the state that eager has."""

    @functools.wraps(original)
    def replacement() -> Any:
        state = modes.current()
        if state is not None and not state.mark:
            return lazy_generators.position().read_state()
        generator_sync.synchronize_all()
        return original()

    return replacement


def _rejecting(original: Any) -> Any:
    """``trunc_normal_``, which draws again until all numbers are in range: of fakes it draws once,
    and a draw into real memory tells later how many words it takes.
    """

    @functools.wraps(original)
    def replacement(
        tensor: Any, mean: float, std: float, a: float, b: float, generator: Any = None
    ) -> Any:
        is_plain = isinstance(tensor, FakeTensor) and not is_deferred_fake(tensor)
        if modes.current() is None or modes.is_recording() or not is_plain:
            return original(tensor, mean, std, a, b, generator=generator)
        if random_values.keeps_draw(tensor.dtype, tensor.numel()) or _never_rejects(
            mean, std, a, b
        ):
            return original(tensor, mean, std, a, b, generator=generator)
        with random_values.passing_over_together(original, tensor, (mean, std, a, b), generator):
            return original(tensor, mean, std, a, b, generator=generator)

    return replacement


_MAX_NORMAL = 9.0
"""No normal number is further from the mean, in standard deviations: they are made of uniform
numbers of 53 bits, of which the smallest gives 8.6."""


def _never_rejects(mean: float, std: float, a: float, b: float) -> bool:
    return std > 0 and mean - a > _MAX_NORMAL * std and b - mean > _MAX_NORMAL * std


# Generators that are pickled: the state is a tensor that C++ reads.

_MAX_PICKLED_BYTES = 1 << 13


def _load_small(original: Any) -> Any:
    """How ``pickle`` loads a storage: a small one with its bytes."""

    @functools.wraps(original)
    def replacement(data: bytes) -> Any:
        state = modes.current()
        if state is None or state.is_loading or len(data) > _MAX_PICKLED_BYTES:
            return original(data)
        state.is_loading = True
        try:
            with dispatcher.as_eager():
                return original(data)
        finally:
            state.is_loading = False

    return replacement


def _rebuilding_states(original: Any) -> Any:
    """How a tensor is made of a pickled storage: the state of a generator is real."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        rebuilt = original(*args, **kwargs)
        if not isinstance(rebuilt, FakeTensor) or modes.current() is None:
            return rebuilt
        if rebuilt.dtype != torch.uint8 or rebuilt.shape != (mt19937.STATE_BYTES,):
            return rebuilt
        storage = rebuilt._fake_storage
        if rebuilt.device.type != "cpu" or not (storage.is_known or storage.deferred):
            return rebuilt
        with dispatcher.as_eager():
            real = known_values.read_value(rebuilt, "a generator").clone()
        return real if mt19937.is_state(real) else rebuilt

    return replacement


def _patches_for_rejection() -> list[Patch]:
    name = "_no_grad_trunc_normal_"
    if not hasattr(torch.nn.init, name):
        return []
    return [Patch(torch.nn.init, name, _rejecting)]


PATCHES = [
    Patch(torch, "get_rng_state", _settling_draws),
    Patch(torch, "manual_seed", _seeding_draws),
    Patch(torch, "set_rng_state", _setting_draws),
    Patch(torch.random, "get_rng_state", _settling_draws),
    Patch(torch.random, "manual_seed", _seeding_draws),
    Patch(torch.random, "set_rng_state", _setting_draws),
    *_patches_for_rejection(),
    Patch(torch.storage, "_load_from_bytes", _load_small),
    Patch(torch._utils, "_rebuild_tensor_v2", _rebuilding_states),
]
