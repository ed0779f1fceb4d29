"""A serving workload: the number and length of sequences, and the kind of cache.

Input: arguments of a :class:`Serve`. Output: a :class:`Serve`. Invariant: the constructor refuses
arguments that contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from torchfake._core.arguments import is_whole_number
from torchfake.errors import InputsError, TargetError
from torchfake.inspect.targets.options import dtype_named
from torchfake.observe import AnswerFunction, Question

PAGED, QUANTIZED = "paged", "quantized"
CACHES = (PAGED, "dynamic", "static", QUANTIZED, "offloaded", "offloaded_static")
"""Names of caches: the paged cache of an engine, and the caches of transformers' ``generate``."""

INTEGERS = {"int8": 8, "int4": 4, "int3": 3, "int2": 2, "int1": 1}
"""Bits per value of a cache, by the name of the integer dtype."""

FP8 = ("fp8", "float8_e4m3fn", "float8_e5m2")
"""Names of 8-bit floating point dtypes of a cache."""


@dataclass(frozen=True)
class Serve:
    """A serving workload: sequences that are in the cache at the same time.

    Args:
        context: the number of tokens in a sequence, prompt and answer together.
        users: the number of sequences that are served at the same time, the batch.
        cache: ``"paged"``: blocks, as in engines such as vLLM; prompts are processed one after the
            other. ``"dynamic"``, ``"static"``, ``"quantized"``, ``"offloaded"`` or
            ``"offloaded_static"``: the cache that transformers' ``generate`` creates for this
            ``cache_implementation``; the prompts of all users are processed in one pass. Or a
            function of the config that returns a transformers cache.
        cache_dtype: the dtype of keys and values, by default the model's. For a paged cache: a
            dtype, ``"fp8"``, ``"int8"`` or ``"int4"``; for a quantized cache: ``"int4"`` (default),
            ``"int2"``, ``"int8"`` or ``"fp8"``.
        block_size: the number of tokens in a block of a paged cache.
        prompt: the length of the longest prompt in tokens; by default the context minus one.
        prefill: the maximum number of prompt tokens in one forward pass, by default unlimited: for
            a paged cache like vLLM's ``max_num_batched_tokens``, otherwise per sequence like
            transformers' ``prefill_chunk_size``.
        backend: for a quantized cache: ``"quanto"``, ``"hqq"`` or ``"fp8"``; by default the first
            of them that supports the dtype.

    Raises:
        InputsError: if an argument is invalid; the message names it.

    >>> Serve(context=8192, users=16, cache="static").prompt_length
    8191
    """

    context: int
    users: int = 1
    cache: str | Callable[[Any], Any] = PAGED
    cache_dtype: torch.dtype | str | None = None
    block_size: int = 16
    prompt: int | None = None
    prefill: int | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        for name in ("context", "users", "block_size", "prompt", "prefill"):
            value, least = getattr(self, name), 2 if name == "context" else 1
            is_optional = name in ("prompt", "prefill")
            if not (is_optional and value is None) and not is_whole_number(value, least):
                raise InputsError(f"{name}={value!r} is not a whole number of {least} or more")
        if self.prompt is not None and self.prompt >= self.context:
            raise InputsError(
                f"a prompt of {self.prompt} tokens leaves no room for an answer in a context of "
                f"{self.context}: give a shorter prompt, or none"
            )
        _check_cache(self.cache)
        _check_dtype(self)

    @property
    def prompt_length(self) -> int:
        """Tokens of the longest prompt."""
        return self.context - 1 if self.prompt is None else self.prompt

    def resized(self, vary: str, size: int) -> Serve | None:
        """The workload with another number of ``"users"``, or another length of ``"context"``, to
        which the prompt is shortened; None if it leaves no room for a prompt and an answer.
        """
        if vary == "users":
            return replace(self, users=size)
        if size < 2:
            return None
        prompt = None if self.prompt is None else min(self.prompt, size - 1)
        return replace(self, context=size, prompt=prompt)

    @property
    def dtype_name(self) -> str | None:
        """The name of the cache's dtype, without "torch."; None for the model's dtype."""
        return None if self.cache_dtype is None else str(self.cache_dtype).removeprefix("torch.")

    @property
    def cache_name(self) -> str:
        """The name of the cache, or of the function that creates it."""
        if isinstance(self.cache, str):
            return self.cache
        return getattr(self.cache, "__name__", type(self.cache).__name__)

    @property
    def text(self) -> str:
        """The workload as the command line takes it."""
        given = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "context" and getattr(self, field.name) != field.default
        }
        given |= {} if self.cache_dtype is None else {"cache_dtype": self.dtype_name}
        parts = [f"{name}={value}" for name, value in given.items()]
        return ",".join([str(self.context), *parts])

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        named = {"cache": self.cache_name, "cache_dtype": self.dtype_name}
        return {**self.__dict__, **named, "prompt_length": self.prompt_length}


def _check_cache(cache: Any) -> None:
    if isinstance(cache, str) and cache not in CACHES:
        raise InputsError(f"cache={cache!r} is not one of {', '.join(CACHES)}, or a function")
    if not isinstance(cache, str) and not callable(cache):
        raise InputsError(f"cache={cache!r} is not a name, or a function of the config")


def _check_dtype(serve: Serve) -> None:
    name = serve.dtype_name
    if serve.backend is not None and serve.cache != QUANTIZED:
        raise InputsError(f"backend={serve.backend!r} applies to cache='quantized' only")
    if serve.backend not in (None, "quanto", "hqq", "fp8"):
        raise InputsError(f"backend={serve.backend!r} is not quanto, hqq or fp8")
    if name is None:
        return
    if serve.cache == PAGED:
        allowed = name in ("int8", "int4") or _is_float(name)
    else:
        allowed = serve.cache == QUANTIZED and (name in INTEGERS or name in FP8)
    if not allowed:
        raise InputsError(
            f"cache_dtype={serve.cache_dtype!r} is not one of cache={serve.cache_name!r}: of a "
            "dynamic or static cache it is the model's, of a quantized one int4, int2, int8 or "
            "fp8, of a paged one int4, int8, fp8 or any floating point dtype"
        )


def _is_float(name: str) -> bool:
    try:
        dtype_named(name)
    except TargetError:
        return False
    return True


def float_dtype(serve: Serve) -> torch.dtype | None:
    """The floating point dtype of a cache; None for the model's dtype, or an integer dtype.

    Raises:
        TargetError: if there is no dtype of that name.
    """
    if serve.dtype_name is None or serve.dtype_name in INTEGERS:
        return None
    return dtype_named(serve.dtype_name)


def value_bits(serve: Serve, own: torch.dtype) -> int:
    """Bits of a value of the cache of a model whose own dtype is given."""
    if serve.dtype_name in INTEGERS:
        return INTEGERS[serve.dtype_name]
    return 8 * (float_dtype(serve) or own).itemsize


def answers_of(serve: Any) -> AnswerFunction | None:
    """The function that supplies unknown values by default. When HQQ quantizes a cache, it repeats
    an iteration if its error has decreased; the answer is yes, because that holds more memory.
    """
    return _smaller if isinstance(serve, Serve) and serve.cache == QUANTIZED else None


def _smaller(question: Question) -> bool | None:
    return True if question.operator.startswith("aten.lt") else None
