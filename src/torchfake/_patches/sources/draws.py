"""Functions that set or read the state of the global generator, or draw by rejection.

Input: the originals. Output: versions that use the lazy generator of a plain mode, or the recorded
draws of a deferred mode. Invariant: outside a mode, or on another thread, each is the original.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torchfake._core import modes
from torchfake._operators import random_values
from torchfake._operators.constant_propagation import covers_storage
from torchfake._patches.patch import Patch, replacing, replacing_in_modes
from torchfake._random import lazy_generators, mt19937, recorded_draws
from torchfake._recording import generator_sync
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import dispatcher


@replacing
def _seeding_draws(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.manual_seed``: later draws start at the new state. Comparing states is not enough to
    notice this, since the same seed may be set again.
    """
    result = original(*args, **kwargs)
    lazy_generators.position().restart()
    recorded_draws.reset(torch.default_generator)
    return result


@replacing
def _setting_draws(original: Any, new_state: Any) -> None:
    """``torch.set_rng_state``: later draws start at the new state. The state may be a fake of known
    value, whose memory C++ would read without a dispatch.
    """
    state = modes.current()
    if state is None or state.mark:
        original(_readable(new_state, original))
        recorded_draws.reset(torch.default_generator)
        lazy_generators.position().restart()
    else:
        lazy_generators.position().set_state(_readable(new_state, original), original)


def _readable(state: Any, function: Any) -> Any:
    """The value of a fake `state` whose dtype and device C++ accepts; otherwise `state` itself."""
    if not isinstance(state, FakeTensor):
        return state
    if state.device.type != "cpu" or state.dtype != torch.uint8:
        return state
    return known_values.read_value(state, f"{function.__name__}()")


@replacing
def _settling_draws(original: Any) -> Any:
    """``torch.get_rng_state``: the state that the generator has in eager mode."""
    state = modes.current()
    if state is not None and not state.mark:
        return lazy_generators.position().read_state()
    generator_sync.synchronize_all()
    return original()


@replacing
def _rejecting(
    original: Any, tensor: Any, mean: float, std: float, a: float, b: float, generator: Any = None
) -> Any:
    """``trunc_normal_``, which draws again until all numbers are in range. A fake is drawn once; if
    the number of words that eager draws is needed later, a draw into real memory counts them.
    """
    bounds = mean, std, a, b
    if modes.current() is None or not isinstance(tensor, FakeTensor):
        return original(tensor, *bounds, generator=generator)
    is_recorded = modes.is_recording() or is_deferred_fake(tensor)
    if not is_recorded and _keeps_drawn(tensor):
        return original(tensor, *bounds, generator=generator)
    if is_recorded or _never_rejects(*bounds):
        result = original(tensor, *bounds, generator=generator)
    else:
        with random_values.skipping_draws_as_one(original, tensor, bounds, generator):
            result = original(tensor, *bounds, generator=generator)
    draws_again = "any" in original.__code__.co_names  # since torch 2.13
    if draws_again and tensor.numel() * _rejected_share(*bounds) > _SURELY_REJECTED:
        torch.autograd.graph.increment_version(tensor)  # eager copies the numbers drawn again
    return result


def _keeps_drawn(tensor: FakeTensor) -> bool:
    """Whether the value of a tensor is known once it is drawn."""
    is_small = random_values.keeps_draw(tensor.dtype, tensor.numel())
    return is_small and (known_values.is_known(tensor) or covers_storage(tensor))


@replacing_in_modes
def _sampling_von_mises(original: Any, loc: Any, concentration: Any, ratio: Any, x: Any) -> Any:
    """``_rejection_sample``, which draws three numbers for each element of `x` until all are
    accepted. Unknown ones are, at once.
    """
    is_known = random_values.keeps_draw(x.dtype, 3 * x.numel())
    for each in (concentration, ratio):
        is_known &= not isinstance(each, FakeTensor) or known_values.is_known(each)
    if isinstance(x, FakeTensor) and not is_known:
        random_values.add_unknown_draw("VonMises.sample", x.device)
    return original(loc, concentration, ratio, x)


_SURELY_REJECTED = 40.0
"""If so many elements are rejected on average, at least one is, but for a chance of exp(-40)."""


def _rejected_share(mean: float, std: float, a: float, b: float) -> float:
    """The share of elements that ``trunc_normal_`` of torch 2.13 rejects at its first draw: normal
    numbers that are out of range, or where few are in range, uniform numbers.
    """
    if not (std > 0 and a < b):
        return 0.0
    low, high = (a - mean) / std, (b - mean) / std
    in_range = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    if in_range > _MIN_NORMALS_IN_RANGE:
        return 1.0 - in_range
    highest = math.exp(-(max(low, min(0.0, high)) ** 2) / 2) / math.sqrt(2 * math.pi)
    return 1.0 - in_range / ((high - low) * highest) if highest else 0.0


_MIN_NORMALS_IN_RANGE = 0.3

_MAX_NORMAL = 9.0
"""No normal number is this many standard deviations from the mean: they are computed from uniform
numbers of 53 bits, of which the smallest gives 8.6."""


def _never_rejects(mean: float, std: float, a: float, b: float) -> bool:
    return std > 0 and mean - a > _MAX_NORMAL * std and b - mean > _MAX_NORMAL * std


# Pickled generators: their state is a tensor that C++ reads.

_MAX_PICKLED_BYTES = 1 << 13


@replacing
def _load_small(original: Any, data: bytes) -> Any:
    """``_load_from_bytes``, which unpickles a storage: small storages keep their bytes."""
    state = modes.current()
    if state is None or state.is_loading or len(data) > _MAX_PICKLED_BYTES:
        return original(data)
    state.is_loading = True
    try:
        with dispatcher.as_eager():
            return original(data)
    finally:
        state.is_loading = False


@replacing
def _rebuilding_states(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``_rebuild_tensor_v2``, which unpickles a tensor: the state of a generator is real."""
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
    Patch(torch.distributions.von_mises, "_rejection_sample", _sampling_von_mises),
    Patch(torch.storage, "_load_from_bytes", _load_small),
    Patch(torch._utils, "_rebuild_tensor_v2", _rebuilding_states),
]
