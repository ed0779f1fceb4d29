"""Functions of torch.nn.init that are recorded as one operation.

Input: the frames of a running call. Output: the user's source location; or, inside an initializer
such as ``trunc_normal_``, one operation for the whole initializer. Invariant: an initializer is
recorded as one operation only if it fills a deferred tensor and all of its arguments have values;
the operators that it calls run on fakes, and are not recorded.

Such initializers draw again until all values are in range, or decompose a matrix. Recorded as one
operation, they compute nothing at construction, and a replay calls torch's own function.
"""

from __future__ import annotations

import sys
import types
import warnings
from functools import lru_cache
from typing import Any

import torch

from torchfake._core import modes, source_location
from torchfake._core.metadata import contiguous_stride, has_repeated_elements, intern
from torchfake._core.source_location import RawLocation
from torchfake._graph.operations import Op, Read
from torchfake._operators.operator_call import NON_TENSOR_TYPES, Args, Kwargs
from torchfake._random import draw_sizes
from torchfake._recording import generator_sync
from torchfake._recording.arguments import RunOnFakes, has_unknown_value, is_materialized
from torchfake._recording.graph_builder import add_write, contents_before_write, recorded_arg
from torchfake._tensor.fake_tensor import is_deferred_fake
from torchfake._torch import backends, dispatcher
from torchfake._torch.compiler import python_functions

CallSite = tuple["RawLocation | None", "types.FrameType | None", bool]


def find_call_site(depth: int = 2) -> CallSite:
    """Find the user's source location, the frame of an initializer that was called from there, and
    whether a sharding function of torch was. The search begins `depth` frames above this one.
    """
    frame: types.FrameType | None = sys._getframe(depth)
    initializers = python_functions.compound_initializers()
    locations_in = source_location.locations_in.cached
    is_sharding_code = source_location.is_sharding_code.cached
    is_sharding = False
    while frame is not None:
        code = frame.f_code
        key = id(code)
        known = locations_in[key] if key in locations_in else source_location.locations_in(code)
        if known is not None:
            at = frame.f_lasti
            return known.get(at) or source_location.new_location(code, at), None, is_sharding
        if is_sharding_code[key]:
            is_sharding = True
        elif key in initializers and _is_recorded_as_one(frame):
            return None, frame, False
        frame = frame.f_back
    return None, None, is_sharding


def is_called_by_to_empty() -> bool:
    """Whether ``nn.Module.to_empty`` has called the running operator."""
    codes = python_functions.code_of_to_empty()
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and source_location.is_library_code(frame.f_code):
        if id(frame.f_code) in codes:
            return True
        frame = frame.f_back
    return False


def _is_recorded_as_one(frame: types.FrameType) -> bool:
    """Whether the initializer's call in `frame` is recorded as one operation."""
    if frame is modes.thread.initializer_frame:
        return True
    values = frame.f_locals
    if not is_deferred_fake(values.get("tensor")) or is_materialized(values["tensor"]):
        return False
    if any(isinstance(v, torch.Tensor) and has_unknown_value(v) for v in values.values()):
        return False
    in_mode = modes.current() is not None
    if frame.f_code.co_name == "sparse_" and (not in_mode or values.get("generator") is not None):
        return False
    return _is_accepted(frame)


def _is_accepted(frame: types.FrameType) -> bool:
    """Whether eager accepts the call in `frame`, found by a call with a small real tensor.

    A call that eager refuses is recorded operator by operator, up to the one that raises: the draws
    and writes before the error remain, as in eager.
    """
    values, meta = frame.f_locals, frame.f_locals["tensor"]._fake_meta
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    args = tuple(values[name] for name in names if name not in ("tensor", "generator"))
    if meta.device.type != "cpu" or not all(type(arg) in NON_TENSOR_TYPES for arg in args):
        return True
    if has_repeated_elements(meta.size, meta.stride):
        return False
    size = tuple(min(length, 2) for length in meta.size)
    return _accepts(id(frame.f_code), meta.dtype, size, torch.get_default_dtype(), args)


@lru_cache(maxsize=4096, typed=True)
def _accepts(
    code: int, dtype: torch.dtype, size: tuple[int, ...], _default: torch.dtype, args: Any
) -> bool:
    function = python_functions.compound_initializers()[code]
    with dispatcher.as_eager(), backends.default_generator_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call itself warns
        try:
            function(torch.ones(size, dtype=torch.bool, device="cpu").to(dtype), *args)
        except Exception:
            return False
    return True


def run_in_initializer(
    frame: types.FrameType, func: Any, args: Args, kwargs: Kwargs, run: RunOnFakes
) -> Any:
    """Run an operation of the initializer in `frame`; the first one records the initializer."""
    if frame is not modes.thread.initializer_frame:
        _record_call(frame)
        modes.thread.initializer_frame = frame
    return run(func, args, kwargs)


def _record_call(frame: types.FrameType) -> None:
    """Record the call in `frame` as one operation that overwrites its tensor."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount]
    tensor, generator = values["tensor"], values.get("generator")
    function = python_functions.compound_initializers()[id(code)]
    location = source_location.caller_location(3)
    others = [name for name in names if name not in ("tensor", "generator")]
    args = [recorded_arg(function, values[name]) for name in others]
    meta = tensor._fake_meta
    op = Op(function, (Read(contents_before_write(tensor), meta), *args), {}, location)
    num_words = None
    if code.co_name == "orthogonal_":
        size = (meta.size[0], tensor.numel() // meta.size[0])
        matrix = intern(size, contiguous_stride(size), 0, meta.dtype, meta.device)
        num_words = draw_sizes.num_words_of_normal(matrix)
    generator_sync.record_draws(op, generator, meta, num_words)
    add_write(op, tensor._fake_storage)
