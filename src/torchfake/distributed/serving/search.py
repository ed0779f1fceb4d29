"""The public function ``search_servers``: GPUs, layouts and formats that serve a number of users.

Input: a TARGET, a number of users, limits of times, kinds of GPUs, prices. Output: a
:class:`ServingSearch`. Invariant: every row is the :class:`ServingPlan` of its layout; GPUs of one
compute capability share the run of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchfake._core.arguments import check_mapping, is_number_above_0, is_whole_number
from torchfake._core.gpu_profiles import CudaProfile, keys_named, named_profile, named_profiles
from torchfake._progress import progress
from torchfake.distributed.passes.formats import check_kernels, format_named, has_kernels
from torchfake.distributed.serving.limits import Limits
from torchfake.distributed.serving.offers import ServingSearch
from torchfake.distributed.serving.serve import question_of, serve
from torchfake.distributed.serving.ways import Ways, with_changes
from torchfake.errors import InputsError, did_you_mean
from torchfake.inspect.timing.hardware import hardware_of

USUAL_GPUS = ("l40s-48gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb")
"""GPUs of servers, which are tried by default."""

Gpus = str | CudaProfile | Sequence[str | CudaProfile] | Mapping[str | CudaProfile, int | None]
"""Types of GPUs, by name or profile; with numbers, or None for any up to the most of all types."""

_DEFAULTS = {
    name: value
    for name, value in (serve.__kwdefaults__ or {}).items()
    if name not in ("gpus", "gpu", "mesh", "suggests", "weights", "cache_dtype")
}
"""Of the options that a search takes too."""

_LONGEST_FIRST, _LONGEST = 300.0, 5.0
"""Seconds to the first token, and from one to the next, that nobody asks for: milliseconds and
tokens per second are meant."""

MOST_GPUS = 8
"""GPUs of a node."""


def search_servers(
    target: str,
    *,
    users: int | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    gpus: int = MOST_GPUS,
    gpu: Gpus = USUAL_GPUS,
    weights: str | Sequence[str] | None = None,
    cache_dtype: torch.dtype | str | Sequence[torch.dtype | str] | None = None,
    prices: Mapping[str, float] | None = None,
    **options: Any,
) -> ServingSearch:
    """Find the GPUs, layouts and formats of weights that serve a model to a number of users, or
    those whose tokens cost least.

    Args:
        target: a TARGET, as for :func:`serve`.
        users: the number of requests under way at the same time. By default each way gets as many
            as it has room for with full contexts and serves within the limits; then tokens are
            compared: the most of a GPU, with prices the cheapest.
        ttft: the longest time to the first token under that load, in seconds.
        tpot: the longest time between two tokens of a user, in seconds.
        gpus: the most GPUs.
        gpu: the GPU types to try; or the most GPUs of each type, such as
            ``{"h100-80gb": 2, "l40s-48gb": 4}``: two of these or four of those.
        weights: the formats of the weights to try; by default the model's own.
        cache_dtype: the dtypes of keys and values to try; by default the model's.
        prices: of an hour of a GPU, by the name of its profile, in any currency.
        options: further options of :func:`serve`, such as ``context``.

    Raises:
        InputsError: if a limit or a price is invalid, or the model cannot be served.
        DeviceError: if there is no such GPU.
    """
    for name, value in (("ttft", ttft), ("tpot", tpot)):
        if value is not None and not is_number_above_0(value):
            raise InputsError(f"{name}={value!r} is not a number of seconds above 0")
    if ttft is not None and ttft > _LONGEST_FIRST:
        raise InputsError(f"ttft={ttft:g} is in seconds: {ttft:g} ms are ttft={ttft / 1000:g}")
    if tpot is not None and tpot > _LONGEST:
        raise InputsError(
            f"tpot={tpot:g} is in seconds for each token: {tpot:g} tokens a second for each user "
            f"are tpot={1 / tpot:.3g}"
        )
    if not is_whole_number(gpus, 1):
        types = "; types of GPUs are given as gpu=" * isinstance(gpus, (str, list, tuple, Mapping))
        raise InputsError(f"gpus={gpus!r} is not a whole number of 1 or more{types}")
    kinds = named_profiles([*gpu] if isinstance(gpu, Mapping) else _listed(gpu), "gpu")
    most = dict.fromkeys(kinds, gpus) | _numbers(gpu)
    check_mapping(prices, "prices")
    hourly = _hourly(prices or {}, kinds)
    formats, caches = _listed(weights), _listed(cache_dtype)
    for each in formats:
        format_named(each)  # refuses what is no format
    for name, given in (("gpu", kinds), ("weights", formats), ("cache_dtype", caches)):
        if not given:
            raise InputsError(f"{name} is empty: name one to try, or leave it out")
    _check_kernels(kinds, formats)
    limits = Limits(ttft, tpot)
    ways = Ways(kinds, most, formats, caches, limits, hourly, users is None)
    options |= {"weights": formats[0], "cache_dtype": caches[0]}
    options["users"] = 1 if users is None else users
    question = question_of(target, **{**_DEFAULTS, **options})
    question = replace(question, gpus=tuple(kinds.values()))
    for each in caches:
        replace(question.serve, cache_dtype=each)  # refuses what is no dtype of a cache
    with progress("Searching"):
        offers, refusals = ways.offers(question)
        if not offers and refusals:
            raise refusals[0]
        left_out = tuple(_left_out(kinds, formats))
        found = ServingSearch(target, users, limits, tuple(offers), len(refusals), left_out)
        return with_changes(found, ways, question)


def _numbers(gpu: Gpus) -> dict[str, int]:
    """The most GPUs of each type that a number is given of, by the name of its profile."""
    found = {}
    for kind, number in gpu.items() if isinstance(gpu, Mapping) else ():
        if number is not None and not is_whole_number(number, 1):
            raise InputsError(f"gpu has {number!r} of {kind!r}: give a whole number of 1 or more")
        if number is not None:
            found[named_profile(kind)[0]] = number
    return found


def _listed(given: Any) -> list[Any]:
    return [*given] if isinstance(given, (list, tuple)) else [given]


def _check_kernels(kinds: Mapping[str, CudaProfile], formats: Sequence[str | None]) -> None:
    """Refuse formats of which no GPU has the kernels."""
    known = [found for found in map(format_named, formats) if found is not None]
    if len(known) == len(formats):
        if not any(has_kernels(gpu, each.name) for gpu in kinds.values() for each in known):
            check_kernels(known[0], next(iter(kinds.values())))


def _left_out(kinds: Mapping[str, CudaProfile], formats: Sequence[str | None]) -> Iterator[str]:
    """What was asked for and is not tried: GPUs without figures, formats without kernels."""
    for kind, gpu in kinds.items():
        if hardware_of(gpu) is None:
            yield f"{kind}, of which the rates are not known"
            continue
        for name in formats:
            if name is not None and not has_kernels(gpu, name):
                as_read = "; fp8-weights are read in 8 bits and multiplied in 16" * (name == "fp8")
                yield f"{name} on {kind}, which has no kernels for it{as_read}"


def _hourly(prices: Mapping[str, float], kinds: Mapping[str, CudaProfile]) -> dict[str, float]:
    """Prices by the name of the profile, which may be given as that of a GPU is."""
    found = {}
    names = {key: gpu.name for key, gpu in kinds.items()}
    for given, price in prices.items():
        named = (given,) if given in kinds else keys_named(str(given), names)
        if not named:
            hint = did_you_mean(str(given), kinds) or f": these are {', '.join(kinds)}"
            raise InputsError(f"prices has a price of {given!r}, which is not in gpu{hint}")
        if not is_number_above_0(price):
            raise InputsError(f"prices has a price of {given}: {price!r} is not a number above 0")
        found.update(dict.fromkeys(named, price))
    return found
