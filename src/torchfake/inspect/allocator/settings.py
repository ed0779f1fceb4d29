"""Parses the settings of CUDA's caching allocator, a string as in ``PYTORCH_CUDA_ALLOC_CONF``.

Input: ``"key:value,key:value"``. Output: :class:`AllocatorSettings`. Invariant: options that torch
refuses are refused by an error that names them; options without effect on addresses are ignored.

The parser of torch is ``AcceleratorAllocatorConfig::parseArgs`` in c10/core/AllocatorConfig.cpp and
``CUDAAllocatorConfig::parseArgs`` in c10/cuda/CUDAAllocatorConfig.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torchfake.errors import InputsError

MIB = 1 << 20
UNLIMITED = (1 << 62) - 1
"""A size larger than any block."""

NUM_INTERVALS = 16
"""Size intervals, 1 MiB to 64 GiB, with their own divisions (``kRoundUpPowerOfTwoIntervals``)."""

_WITHOUT_EFFECT = {
    "expandable_segments_reserve": "text",
    "expandable_segments_reserve_by_class": "text",
    "graph_capture_record_stream_reuse": "flag",
    "pinned_free_catch_all": "flag",
    "pinned_max_cached_size_mb": "number",
    "pinned_max_round_threshold_mb": "number",
    "pinned_num_register_threads": "number",
    "pinned_reserve_segment_size_mb": "number",
    "pinned_use_background_threads": "flag",
    "pinned_use_cuda_host_register": "flag",
    "release_lock_on_cudamalloc": "flag",
    "throw_on_cudamalloc_oom": "flag",
}
"""The kinds of values of options that change no address: of pinned memory, locks and errors."""


@dataclass(frozen=True)
class AllocatorSettings:
    """The options that determine which memory is reserved."""

    text: str = ""  # the string that was parsed
    expandable_segments: bool = False
    max_split_bytes: int = UNLIMITED  # blocks of this size and more are not split
    max_non_split_rounding_bytes: int = 20 * MIB  # by which an unsplit block may exceed a request
    large_segment_bytes: int = 20 * MIB  # segment size for requests between 1 MiB and 10 MiB
    roundup_power2_divisions: tuple[int, ...] = (0,) * NUM_INTERVALS  # for 1 MiB, 2 MiB, 4 MiB, ...
    garbage_collection_threshold: float = 0.0  # share of the allowed memory; 0: no collection
    per_process_memory_fraction: float = 1.0  # share of the device's memory that is allowed

    def divisions(self, num_bytes: int) -> int:
        """The number of divisions of the interval between powers of two that a size is in."""
        interval = num_bytes.bit_length() - MIB.bit_length()
        return self.roundup_power2_divisions[min(max(interval, 0), NUM_INTERVALS - 1)]


DEFAULT_SETTINGS = AllocatorSettings()
"""The settings of an empty string."""


def parse_settings(text: str) -> AllocatorSettings:
    """The settings that a string describes.

    Args:
        text: options as in the environment variable, such as ``"expandable_segments:True"``.

    Raises:
        InputsError: if an option is unknown, or its value is invalid.

    >>> parse_settings("max_split_size_mb:128,expandable_segments:True").max_split_bytes
    134217728
    """
    if not isinstance(text, str):
        raise InputsError(
            f"allocator={text!r} is not a string of options, as PYTORCH_CUDA_ALLOC_CONF has it: "
            "give one such as 'expandable_segments:True'"
        )
    settings = AllocatorSettings(text)
    for option in _split(re.sub(r"\s", "", text)):
        key, colon, value = option.partition(":")
        if not colon or not value:
            raise InputsError(f"allocator: {option!r} is not an option and its value, key:value")
        settings = _with_option(settings, key, value)
    return settings


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets; a trailing comma is allowed, as in torch."""
    options = re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", text)
    if "" in text.removesuffix(",").split(",") and text:
        raise InputsError(f"allocator={text!r} has an empty option between two commas")
    return options


def _with_option(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    if key in _OPTIONS:
        field, parse = _OPTIONS[key]
        return replace(settings, **{field: parse(key, value)})
    if key == "backend":
        _check_backend(value)
    elif key.replace("hip", "cuda") in _WITHOUT_EFFECT:
        kind = _WITHOUT_EFFECT[key.replace("hip", "cuda")]
        _CHECKS[kind](key, value)
    else:
        known = ", ".join(sorted({*_OPTIONS, "backend", *_WITHOUT_EFFECT}))
        raise InputsError(f"allocator: there is no option {key!r}; there are {known}")
    return settings


def _check_backend(value: str) -> None:
    if value != "native":
        raise InputsError(
            f"allocator: backend:{value} leaves memory to the driver, whose pools are not known: "
            "only backend:native is modelled"
        )


def _flag(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise InputsError(f"allocator: {key}:{value} is neither True nor False")
    return value == "True"


def _whole_number(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", value):
        raise InputsError(f"allocator: {key}:{value} is not a whole number")
    return int(value)


def _text(key: str, value: str) -> str:
    return value


def _megabytes(key: str, value: str) -> int:
    number = _whole_number(key, value)
    if number < 20:  # kLargeBuffer
        raise InputsError(f"allocator: {key}:{value} is too small: give 20 (MiB) or more")
    return min(number * MIB, UNLIMITED)


def _segment_megabytes(key: str, value: str) -> int:
    number = _whole_number(key, value)
    if number <= 10:  # kMinLargeAlloc
        raise InputsError(f"allocator: {key}:{value} is too small: give more than 10 (MiB)")
    return number * MIB


def _fraction(key: str, value: str, *, least: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    inside = 0.0 <= number <= 1.0 if least == 0.0 else 0.0 < number < 1.0
    if not inside:
        ends = "0 to 1" if least == 0.0 else "0 to 1, both excluded"
        raise InputsError(f"allocator: {key}:{value} is not a number from {ends}")
    return number


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """The divisions of all intervals, from one number, or ``[256:1,512:2,>:8]``: 1 from 256 MiB on,
    2 from 512 MiB on, 8 from 1 GiB on. Sizes below the first have its divisions; sizes omitted
    between two have none. (In some versions of torch, ``>`` also changes the last named size.)
    """
    if not value.startswith("["):
        return (_power_of_two(key, value, value, least=1),) * NUM_INTERVALS
    if not value.endswith("]"):
        raise InputsError(f"allocator: {key}:{value} has no closing bracket")
    divisions = [0] * NUM_INTERVALS
    last: int | None = None
    for item in value[1:-1].split(","):
        size, colon, number = item.partition(":")
        if not colon:
            raise InputsError(f"allocator: {key}: {item!r} is not an interval, SIZE:DIVISIONS")
        count = _power_of_two(key, number, item, least=0)
        if size == ">":
            first = 0 if last is None else last + 1
            divisions[first:] = [count] * (NUM_INTERVALS - first)
            continue
        index = _power_of_two(key, size, item, least=1).bit_length() - 1
        index = min(index, NUM_INTERVALS - 1)
        if last is None:
            divisions[:index] = [count] * index
        divisions[index], last = count, index
    return tuple(divisions)


def _power_of_two(key: str, value: str, item: str, *, least: int) -> int:
    number = _whole_number(key, value)
    if number < least or number & (number - 1):
        raise InputsError(f"allocator: {key}: in {item!r}, {value} is not a power of two")
    return number


def _threshold(key: str, value: str) -> float:
    return _fraction(key, value, least=0.5)


def _share(key: str, value: str) -> float:
    return _fraction(key, value, least=0.0)


_OPTIONS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "expandable_segments": ("expandable_segments", _flag),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "large_segment_size_mb": ("large_segment_bytes", _segment_megabytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _megabytes),
    "max_split_size_mb": ("max_split_bytes", _megabytes),
    "per_process_memory_fraction": ("per_process_memory_fraction", _share),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
}
"""The options with an effect: the field of the settings, and the parser of the value."""

_CHECKS: dict[str, Callable[[str, str], Any]] = {
    "flag": _flag,
    "number": _whole_number,
    "text": _text,
}
"""The checks of the values of options without an effect, by the kind of value."""
