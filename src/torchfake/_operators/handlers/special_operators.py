"""Handlers of the operators that the general procedure of ``interpreter`` does not fit.

Input: an operator and its arguments, as they come from ``_dispatch``. Output: the operator's
result. Invariant: ``handler_of`` finds all handlers: nothing else in torchfake runs an operator by
its name. The docstring of a handler says why its operator needs one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchfake._core import devices, modes, source_location
from torchfake._core.metadata import contiguous_stride, intern
from torchfake._core.schemas import traits_of
from torchfake._core.storage import Storage
from torchfake._operators import random_values
from torchfake._operators.argument_checks import (
    check_index_devices,
    check_mask_fits,
    refuse_nested,
)
from torchfake._operators.constant_propagation import (
    argument_value,
    is_known,
    is_recorded,
)
from torchfake._operators.handlers import collectives
from torchfake._operators.handlers.storages import (
    as_strided,
    is_pinned,
    is_set_to,
    pin_memory,
    set_storage,
)
from torchfake._operators.interpreter import interpret
from torchfake._operators.operator_call import Args, Call, Kwargs, common_device
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy, new_fake
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._torch import backends, dispatcher
from torchfake._torch.compiler import python_functions
from torchfake._unknown_values import answerers
from torchfake.errors import UnsupportedOpError

aten = torch.ops.aten

Handler = Callable[[Any, Args, Kwargs], Any]
_HANDLERS: dict[int, tuple[Any, Handler]] = {}
"""Handlers by the ``id`` of the operator: hashing the operator would be a Python call."""


def register_handler(*overloads: Any) -> Callable[[Handler], Handler]:
    """Register a handler for operator overloads."""

    def register(handler: Handler) -> Handler:
        for overload in overloads:
            _HANDLERS[id(overload)] = overload, handler
        return handler

    return register


@register_handler(aten._local_scalar_dense.default)
def read_scalar(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``item()``: the known value, or an assumed one if torch's own code reads an unknown value."""
    fake = args[0]
    if not isinstance(fake, FakeTensor):
        return func(*args, **kwargs)
    if known_values.is_unknown(fake):
        assumed = source_location.assumed_value_for_caller(python_functions.assumed_values())
        if assumed is not None:
            answerers.note(fake, "item()", assumed, "torch")
            return assumed
    return known_values.read_value(fake, "item()").item()


_LIFTING = (aten.lift_fresh.default, aten.lift.default)
LIFT_IDS = frozenset(map(id, _LIFTING))


@register_handler(*_LIFTING)
def lift(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Make a fake of known value from a tensor that C++ made from Python objects or NumPy arrays.

    Real tensors are lifted inside a mode only. A meta tensor, which torch 2.15 lifts, is unchanged.
    """
    source = args[0]
    if isinstance(source, FakeTensor):
        return source
    untyped = source.untyped_storage()
    if isinstance(untyped, FakeUntypedStorage):  # torch.tensor(fake.storage())
        return untyped.as_tensor(source.dtype)
    if source.is_meta:
        return source
    return fake_copy(source, known=True)


_marks = torch.ops.profiler
_MARKS = _marks._record_function_enter_new.default, _marks._record_function_exit._RecordFunction
PROFILER_MARK_IDS = frozenset(map(id, _MARKS))


@register_handler(*_MARKS)
def run_itself(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """An operator without tensors: a mark in the trace of the profiler, as optimizers set it."""
    return func(*args, **kwargs)


@register_handler(aten.detach.default, aten.alias.default)
def whole_view(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A view of a whole tensor: no kernel is needed. Every ``nn.Parameter`` is made by one."""
    source = args[0]
    if not isinstance(source, FakeTensor):
        return func(*args, **kwargs)
    return new_fake(source._fake_meta, source._fake_storage)


@register_handler(
    aten.normal_.default, aten.uniform_.default, aten.bernoulli_.float, aten.exponential_.default,
    aten.random_.default, aten.random_.to, getattr(aten.random_, "from"),
    aten.geometric_.default, aten.cauchy_.default, aten.log_normal_.default,
)  # fmt: skip
def fill_with_draws(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Random fills need no kernel: no metadata changes, and ``_eager_checks`` has run before."""
    fake = args[0]
    if not isinstance(fake, FakeTensor) or random_values.keeps_drawn_values(func, [fake]):
        return interpret(func, args, kwargs)
    call = Call(func, args, kwargs)
    if not is_recorded(call):
        call.device = fake._fake_meta.device
        random_values.skip_draw(call, fake._fake_meta)
    fake._fake_storage.value = None
    return fake


@register_handler(*random_values.overloads_with_out())
def draw_into(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``torch.rand(3, out=x)``: `x` is resized and filled, and its old value is not read."""
    if not isinstance(kwargs["out"], FakeTensor) or modes.is_recording():
        return interpret(func, args, kwargs)
    return random_values.draw_into(func, args, kwargs, interpret)


_PLAIN_OPTIONS = frozenset({"dtype", "device"})


@register_handler(aten.empty.memory_format)
def empty(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Contiguous floats, with which most weights begin, are made without a kernel."""
    size, dtype = tuple(args[0]), kwargs.get("dtype") or torch.get_default_dtype()
    target = devices.resolve(kwargs.get("device") or devices.CPU)
    plain = not kwargs.get("pin_memory") and kwargs.keys() - {"pin_memory"} <= _PLAIN_OPTIONS
    sizes = all(type(n) is int and n >= 0 for n in size)
    plain = plain and dtype.is_floating_point and not backends.fills_empty_memory()
    if not (plain and sizes) or target.type == "meta":
        return interpret(func, args, kwargs)
    num_bytes = math.prod(size) * dtype.itemsize
    if num_bytes > _MAX_BYTES:
        return interpret(func, args, kwargs)  # raises what torch raises
    storage = Storage(num_bytes, target, func, source_location.caller_location(2))
    return new_fake(intern(size, contiguous_stride(size), 0, dtype, target), storage)


_MAX_BYTES = 1 << 62


register_handler(
    aten.as_strided.default,
    aten.as_strided_.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
)(as_strided)


@register_handler(aten._is_any_true.default)
def is_any_true(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Torch uses this to find bad values (anomaly detection): unknown values are assumed good."""
    return _assume(func, args, kwargs, assumed=False)


@register_handler(aten._is_all_true.default)
def is_all_true(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Torch uses this to check ranges (distributions): unknown values are assumed in range."""
    return _assume(func, args, kwargs, assumed=True)


def _assume(func: Any, args: Args, kwargs: Kwargs, *, assumed: bool) -> Any:
    if is_known(args[0]):
        return interpret(func, args, kwargs)
    if isinstance(args[0], FakeTensor):
        answerers.note(args[0], str(func), assumed, "torch")
    result = torch.full((), assumed, device="cpu")
    return fake_copy(result, device=args[0].device, known=True)


@register_handler(aten._nested_tensor_from_mask_left_aligned.default)
def is_left_aligned(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """False, so that ``nn.TransformerEncoder`` makes no nested tensor: fakes cannot be nested."""
    return False


register_handler(aten._nested_tensor_from_mask.default)(refuse_nested)
register_handler(
    aten.set_.source_Storage,
    aten.set_.source_Storage_storage_offset,
    aten.set_.source_Tensor,
    aten.set_.source_Tensor_storage_offset,
    aten.set_.default,
)(set_storage)


@register_handler(aten._linalg_check_errors.default)
def check_errors(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Checks whether a factorisation succeeded: without values, it did."""
    info = args[0]
    if isinstance(info, FakeTensor) and info._fake_storage.is_known:
        with dispatcher.as_eager():
            return func(argument_value(info), *args[1:], **kwargs)
    return None


_DEGENERATE = frozenset({aten.le.Scalar, aten.lt.Scalar, aten.eq.Scalar})


@register_handler(aten.equal.default)
def equal(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``torch.equal``. C++ itself calls ``equal(condition, ones)`` with ones that it has just made
    (``is_scalar_tensor_true``, in ``torch.cov``). If the condition is unknown, a check is assumed
    to pass, and a degenerate case not to occur.
    """
    condition, ones = args
    are_alike = condition.dtype == ones.dtype and condition.device == ones.device
    if are_alike and condition.shape != ones.shape:
        return False  # whatever the values are
    if isinstance(condition, FakeTensor) and isinstance(ones, FakeTensor):
        storage, made_by = condition._fake_storage, ones._fake_storage.op
        if storage.is_unknown and made_by is aten.new_ones.default and condition.dim() == 0:
            return storage.op not in _DEGENERATE
        if storage.is_unknown and _is_same_tensor(condition, ones):
            if condition.dtype.is_floating_point or condition.dtype.is_complex:
                answerers.note(condition, "aten.equal.default", True, "finiteness")  # no NaN
            return True
    return interpret(func, args, kwargs)


def _is_same_tensor(one: FakeTensor, other: FakeTensor) -> bool:
    """Whether two plain fakes have the same storage and metadata, as tied weights do."""
    is_same = one._fake_storage is other._fake_storage and one._fake_meta == other._fake_meta
    return is_same and one._fake_storage.deferred is None


@register_handler(aten.allclose.default)
def allclose(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``torch.allclose``: the assumed answer if torch's own code compares unknown values."""
    if not all(is_known(t) for t in args[:2]):
        assumed = source_location.assumed_value_for_caller(python_functions.assumed_values())
        if assumed is not None:
            return bool(assumed)
    return interpret(func, args, kwargs)


@register_handler(aten.masked_select.default)
def masked_select(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """``masked_select``: only the mask decides the length; the source need not be known."""
    source, mask = args
    if is_known(source) or not is_known(mask):
        return interpret(func, args, kwargs)
    common_device(traits_of(func), [source, mask])
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    length = int(argument_value(mask).expand(shape).sum())
    return interpret(aten.new_empty.default, (source, [length]), {})


@register_handler(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Indexing: the shape of the result depends on values if an index is a mask, and only then.
    A known mask is replaced by its positions.
    """
    source, indices = args
    check_index_devices(source, indices)
    if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return interpret(func, args, kwargs, needs_values=False)
    positions: list[Any] = []
    for i in indices:
        is_mask = i is not None and i.dtype in (torch.bool, torch.uint8)
        if is_mask:
            check_mask_fits(i, source, len(positions))
        positions.extend(_positions(i) if is_mask else [i])
    return interpret(func, (source, positions), kwargs, needs_values=False)


def _positions(mask: Any) -> list[FakeTensor]:
    """The positions where a mask is true, as one index tensor for each dim. For an unknown mask, an
    answerer may give their number.
    """
    if not isinstance(mask, FakeTensor) and mask.is_meta:
        return list(mask.nonzero().unbind(1))  # raises what eager raises
    if not is_known(mask):
        count = answerers.count_of(mask, "indexing with a mask", 0, mask.numel())
        if count is None:
            raise known_values.unknown_value_error(mask, "indexing with a mask")
        return [mask.new_empty((count,), dtype=torch.int64) for _ in range(mask.dim())]
    found = argument_value(mask).nonzero(as_tuple=True)
    return [fake_copy(p, device=mask.device, known=True) for p in found]


register_handler(aten.is_pinned.default)(is_pinned)
register_handler(aten.is_set_to.default)(is_set_to)
register_handler(aten._pin_memory.default, aten.pin_memory.default)(pin_memory)


@register_handler(
    aten.quantize_per_tensor.default,
    aten.quantize_per_tensor.tensor_qparams,
    aten.quantize_per_tensor_dynamic.default,
    aten.quantize_per_channel.default,
    aten._empty_affine_quantized.default,
)
def refuse_quantized(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Refuse quantized dtypes: they carry a scale, and their meta kernels lose the dtype."""
    raise UnsupportedOpError(f"{func} gives a quantized tensor; fakes have no quantized dtypes")


@register_handler(aten.dequantize.self)
def dequantize(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Floats of a tensor that is not quantized, for which meta has no kernel."""
    if not isinstance(args[0], FakeTensor) or args[0].dtype == torch.float32:
        return args[0] if isinstance(args[0], FakeTensor) else func(*args)
    return interpret(aten._to_copy.default, args, {"dtype": torch.float32})


@register_handler(aten.record_stream.default)
def record_stream(func: Any, args: Args, kwargs: Kwargs) -> None:
    """Do nothing: no allocator has to know the stream."""


def handler_of(func: Any) -> Handler | None:
    """The handler of an operator, if it has one."""
    found = _HANDLERS.get(id(func))
    if found is not None:
        return found[1]
    name = traits_of(func).packet
    if name in collectives.COLLECTIVES:
        return collectives.run_collective
    return collectives.wait_tensor if name == collectives.WAIT else None
