"""The fast path of recording, for an operation whose result is cached.

Input: a recipe of the dispatch cache with the facts needed to record a call, and the arguments of a
call with the recipe's key. Output: the result, recorded. Invariant: the recorded operation equals
the one that ``_recording/record`` would record; special calls (tensors that are not deferred or
already materialized, inference mode) are left to ``_recording/record``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from torchfake._cache.recipes import RecordingRecipe
from torchfake._core import modes
from torchfake._core.metadata import DEFERRED_AS_META, PLAIN
from torchfake._core.source_location import RawLocation
from torchfake._core.storage import storage_of_kind
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import NO_KWARGS, Cell, Op, Output, Read, recording_lock
from torchfake._operators.operator_call import NON_TENSOR_TYPES, Args, Kwargs
from torchfake._random import draw_sizes
from torchfake._recording import generator_sync
from torchfake._recording.graph_builder import (
    add_write,
    contents_before_write,
    recorded_arg,
)
from torchfake._recording.initializers import find_call_site
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._torch import numerics, subclass

NOT_RECORDED: Any = object()
"""The result of :func:`record_hit` for a call that it does not record."""

_make_wrapper = subclass.make_wrapper
_default_dtype = torch.get_default_dtype
_in_inference_mode = torch.is_inference_mode_enabled
_new = tuple.__new__


@lru_cache(4096)
def _shared(number: float) -> float:
    """The number as one object for all operations: C++ passes a new one to each call."""
    return number


def record_hit(recipe: RecordingRecipe, func: Any, args: Args, kwargs: Kwargs, mark: int) -> Any:
    """Make the result of a call from `recipe`, and add the operation to the graph; or return
    :data:`NOT_RECORDED`, without any effect. `mark` is the mark of the mode.

    A hot path, which is one function for the same reason as ``_dispatch.dispatch``.
    """
    default_dtype = recipe.guard_default_dtype
    if default_dtype is not None and default_dtype is not _default_dtype():
        return NOT_RECORDED
    if mark == PLAIN and (recipe.needs_mode or recipe.is_empty):
        return NOT_RECORDED
    if _in_inference_mode() or (kwargs and mark == DEFERRED_AS_META):
        return NOT_RECORDED
    if recipe.is_empty:
        return _new_fake(recipe, None, find_call_site()[0], mark)
    with recording_lock:
        recorded: list[Any] = []
        for arg in args:
            kind = type(arg)
            if kind is float and arg:  # 0.0 and -0.0 are equal as keys
                recorded.append(_shared(arg))
            elif kind in NON_TENSOR_TYPES:
                recorded.append(arg)
            elif kind in FAKE_TYPES:
                deferred = arg._fake_storage.deferred
                if deferred is None or deferred.real is not None:
                    return NOT_RECORDED
                if deferred.mark > mark:
                    mark = deferred.mark
                recorded.append(_new(Read, (deferred.contents, arg._fake_meta)))
            elif kind is list:  # a list of numbers
                recorded.append(arg.copy())
            elif isinstance(arg, torch.Tensor):
                return NOT_RECORDED
            else:
                recorded.append(recorded_arg(func, arg))
        if mark == PLAIN:
            return NOT_RECORDED
        location, initializer, is_sharding = find_call_site()
        if initializer is not None:
            return NOT_RECORDED
        modes.thread.initializer_frame = None
        if recipe.overwrites_first:
            recorded[0] = Read(contents_before_write(args[0]), args[0]._fake_meta)
        named = NO_KWARGS
        if kwargs:
            named = {n: recorded_arg(func, a) for n, a in kwargs.items() if n != "generator"}
        op = Op(func, tuple(recorded), named, location)
        if recipe.product_kind is not None:
            inside = modes.thread.cast_inside
            op.product_settings = numerics.current_for_products(recipe.product_kind, inside)
        if is_sharding:
            op.is_sharding = True
        writes_first = recipe.wrapper is None
        result = args[0] if writes_first else _new_fake(recipe, op, location, mark)
        if recipe.is_random:
            meta = result._fake_meta
            num_words = draw_sizes.num_words_drawn(func, args, meta)
            generator_sync.record_default_draws(op, meta, num_words)
        if writes_first:
            add_write(op, result._fake_storage)
        return result


def _new_fake(
    recipe: RecordingRecipe, op: Op | None, location: RawLocation | None, mark: int
) -> Any:
    """The result of `op` with a new storage, which is uninitialized if `op` is None."""
    fake: Any = _make_wrapper(*recipe.wrapper)  # type: ignore[misc]
    record, kind = recipe.records[mark], recipe.kind
    storage = storage_of_kind(kind, location)
    fake._fake_attributes = {"_fake_meta": record, "_fake_storage": storage}
    cell = Cell(kind.num_bytes, kind.device)
    storage.deferred = DeferredState(cell, op, mark)
    if op is not None:
        op.outputs = (_new(Output, (None, cell, record)),)
    return fake
