"""The dispatcher of torchfake: every operation on fakes that no rule answers comes here.

Input: the arguments of ``__torch_dispatch__``, called for a mode or a fake: an operator, the
classes of its arguments, the arguments. Output: the operator's result, built from a cached recipe
if there is one, else by a special operator's handler or the interpreter; operations on deferred
fakes are also recorded. Invariant: tensor subclasses of other libraries run their own
``__torch_dispatch__`` first.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from torchfake._cache import cache, other_sizes, rules
from torchfake._cache.apply import apply_recipe
from torchfake._cache.inference_mode import (
    in_inference_mode,
    inference,
    is_inference,
    is_of_other_kind,
    run_in_kind_of_argument,
)
from torchfake._cache.recipes import Recipe, guards_hold
from torchfake._core import devices, modes, source_location
from torchfake._core.metadata import DEFERRED, DEFERRED_AS_META, PLAIN
from torchfake._core.schemas import COMPOSITES_TO_DECOMPOSE, OpTraits, traits_of
from torchfake._core.storage import storage_of_kind
from torchfake._eager_checks.checked_run import run as _run
from torchfake._operators.composites import register as _composites  # noqa: F401  adds kernels
from torchfake._operators.cuda.first_use import COMPOSED_ELSEWHERE
from torchfake._operators.handlers.special_operators import (
    LIFT_IDS,
    PROFILER_MARK_IDS,
    handler_of,
    lift,
    read_scalar,
)
from torchfake._operators.higher_order.kernels import run as run_higher_order
from torchfake._operators.meta_kernels.first_use import has_replacement
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._recording.arguments import has_deferred_arguments
from torchfake._recording.eager import first_use as _first_use  # noqa: F401  registers its kernels
from torchfake._recording.hits import NOT_RECORDED, record_hit
from torchfake._recording.record import record
from torchfake._recording.sparse_tensors import is_sparse, run_sparse
from torchfake._tensor.classes import FAKE_TYPES
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatcher, kernels, subclass
from torchfake._torch.compiler import higher_order
from torchfake._torch.contexts import Restoring

_tables = cache.tables
_make_wrapper = subclass.make_wrapper
_default_dtype = torch.get_default_dtype
_is_recording = modes.is_recording
_getframe = sys._getframe
_caller_location = source_location.caller_location
_new_location = source_location.new_location
_locations_in = source_location.locations_in.cached


_READ = torch.ops.aten._local_scalar_dense.default
_NO_RECIPE = Recipe(outcome=None, op=None)


def dispatch(
    owner: Any, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
) -> Any:
    """Run one operator. `owner` is the mode or the class whose ``__torch_dispatch__`` torch calls.

    This is the hot path, in one function because a Python call costs 2 % of a hit. Operators that
    are called often have a rule, which torch calls instead (``_cache/rules``). A call with a
    foreign tensor subclass as an argument is always a miss, since that has no metadata record.
    """
    try:
        table = _tables[id(func)][(len(args), *kwargs) if kwargs else len(args)]
        key_of, recipes, _ = table
        recipe = recipes[key_of(args, kwargs)]
    except (KeyError, TypeError):
        recipe = _NO_RECIPE  # handled below: errors raised here would have this one as context
    fast = recipe.fast
    if fast is None:
        returned, write = recipe.returned_argument, recipe.write
        if returned is None or (write is not None and not write(args)):
            return _slow_path(recipe, func, types, args, kwargs or {}, owner)
        return args[returned]
    record, wrapper, base, default_dtype, kind, value, make_value = fast
    if default_dtype is not None and default_dtype is not _default_dtype():
        return _miss(func, types, args, kwargs or {}, owner)
    if make_value is not None:
        value = make_value(args, kwargs)
        if value is None:
            return _slow_path(recipe, func, types, args, kwargs or {}, owner)
    if base is None:
        if in_inference_mode():
            inference.seen = True
        try:
            frame = _getframe(1)
        except ValueError:  # a thread of C++, such as that of torch.jit.fork: no Python has called
            location = None
        else:
            code = frame.f_code
            known = _locations_in.get(id(code))
            if known is None:  # code of a library, or code not seen before
                location = _caller_location(2)
            else:
                instruction = frame.f_lasti
                location = known.get(instruction) or _new_location(code, instruction)
        storage = storage_of_kind(kind, location, value)
    elif in_inference_mode() or (inference.seen and args[base].is_inference()):
        return _slow_path(recipe, func, types, args, kwargs or {}, owner)
    else:
        storage = args[base]._fake_storage
    fake = _make_wrapper(*wrapper)
    fake._fake_attributes = {"_fake_meta": record, "_fake_storage": storage}
    return fake


def _slow_path(
    recipe: Recipe, func: Any, types: Any, args: Args, kwargs: Kwargs, owner: Any = None
) -> Any:
    """Return the result of a hit that the hot path cannot finish, or of a miss."""
    if recipe is _NO_RECIPE or not guards_hold(recipe):
        followed = _follow(func, args, kwargs)
        return _miss(func, types, args, kwargs, owner) if followed is None else followed
    if recipe.is_recorded:
        if recipe.recording is not None:
            result = record_hit(recipe.recording, func, args, kwargs, PLAIN)
            if result is not NOT_RECORDED:
                return result
        return record(func, traits_of(func), args, kwargs, _run_unrecorded)
    return _apply(recipe, func, args, kwargs)


def _apply(recipe: Recipe, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if is_of_other_kind(args):
        return run_in_kind_of_argument(partial(apply_recipe, recipe), func, args, kwargs)
    return apply_recipe(recipe, func, args, kwargs)


def _follow(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the result of a call that calls of other sizes decide; else None."""
    if id(func) not in other_sizes.OPERATORS or is_of_other_kind(args):
        return None
    recipe = cache.follow(func, args, kwargs)
    return None if recipe is None else apply_recipe(recipe, func, args, kwargs)


def _miss(func: Any, types: Any, args: Args, kwargs: Kwargs, owner: Any = None) -> Any:
    """Run an operator for which no usable recipe is cached."""
    if not isinstance(func, OpOverload):
        with higher_order.mode_put_back(owner):
            return run_higher_order(func, args, kwargs)
    if _has_foreign_class(types):
        return NotImplemented
    if id(func) in LIFT_IDS and not types and not in_inference_mode():
        return lift(func, args, kwargs)  # frequent: BatchNorm counts from torch.tensor(0)
    if id(func) in PROFILER_MARK_IDS:
        return func(*args, **kwargs)  # frequent: two per step of an optimizer
    if func is _READ and type(args[0]) in FAKE_TYPES and args[0]._fake_storage.deferred is None:
        return read_scalar(func, args, kwargs)  # never cached: nothing else has to be asked
    traits = traits_of(func)
    if _must_decompose(func, traits, args):
        return decompose(owner, func, args, kwargs)
    if is_sparse(func, args, kwargs):
        return run_sparse(func, args, kwargs, _run_unrecorded)
    if has_deferred_arguments(args, kwargs):
        return record(func, traits, args, kwargs, _run_unrecorded)
    if not traits.returns_tensors or not kernels.is_decomposed_in_cpp(func):
        return _run_and_cache(func, args, kwargs)
    if traits.is_random or traits.product_kind == "rnn":
        return decompose(owner, func, args, kwargs)  # each draw has its position in the sequence
    return _run_and_cache(func, args, kwargs, partial(_run_or_decompose, owner))


def _must_decompose(func: Any, traits: OpTraits, args: Args) -> bool:
    """Whether an operator has to be decomposed here, as C++ would have decomposed it.

    C++ decomposes composite operators before dispatching to Python, except in inference mode, for
    inference tensors, and when another wrapper class handled the operation. Four kinds cannot be
    run whole then: ``to`` compares real devices; some read values; some
    return a view or a copy, and outside of inference mode only the view is an inference tensor; and
    C++ refuses to write inference tensors there, which it checks for the parts.
    """
    if traits.packet == "aten::to" or _writes_in_parts(func, traits):
        return True
    is_by_others = traits.packet in COMPOSITES_TO_DECOMPOSE
    if in_inference_mode() or not (is_by_others or traits.is_view):
        return is_by_others
    first = args[0] if args and isinstance(args[0], list) else args[:1]
    is_of_inference = any(is_inference((each,)) for each in first)
    return is_of_inference and (is_by_others or kernels.is_decomposed_in_cpp(func))


def _writes_in_parts(func: Any, traits: OpTraits) -> bool:
    """Whether a composite operator writes its first argument, as ``swapdims_`` does."""
    return traits.mutated_positions == (0,) and kernels.is_decomposed_in_cpp(func)


def decompose(owner: Any, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Decompose an operator as C++ does, with the mode that intercepted it active again."""
    mode = owner if isinstance(owner, FakeDispatch) else None
    as_in_cpp = in_inference_mode() or _writes_in_parts(func, traits_of(func))
    with higher_order.mode_put_back(mode), dispatcher.view_bases_recorded(as_in_cpp):
        return kernels.decompose(func, args, kwargs)


def _run_or_decompose(owner: Any, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Decompose an operator as C++ does, unless torchfake or the device has a kernel for it."""
    if has_own_kernel(func, args) or traits_of(func).is_view:
        return _run(func, args, kwargs)
    return decompose(owner, func, args, kwargs)


def has_own_kernel(func: Any, args: Args) -> bool:
    """Whether a composite operator has a kernel of torchfake's, or one of the device's."""
    is_whole = func in COMPOSED_ELSEWHERE and args[0].device.type == "cuda"
    return is_whole or bool(handler_of(func)) or bool(has_replacement(func))


def _has_foreign_class(types: Any) -> bool:
    """Whether a foreign tensor subclass, such as DTensor, must handle the operation first. The
    subclass then dispatches operations on the fakes that it wraps.
    """
    for cls in types:
        own = cls.__torch_dispatch__
        if not issubclass(cls, FakeTensor) and own is not subclass.disabled_torch_dispatch:
            return True
    return False


def _run_and_cache(func: Any, args: Args, kwargs: Kwargs, run: Any = None) -> Any:
    run = run or _run
    if is_of_other_kind(args):
        return run_in_kind_of_argument(partial(cache.run_and_cache, run), func, args, kwargs)
    return cache.run_and_cache(run, func, args, kwargs)


# Deferred modes.


def dispatch_deferred(
    owner: Any, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
) -> Any:
    """Run one operator in a deferred mode, which records every operation that makes a tensor."""
    recording = _recipe_for(func, args, kwargs).recording
    mode = modes.thread.modes[-1]
    if recording is not None:
        result = record_hit(recording, func, args, kwargs or {}, mode.mark)
        if result is not NOT_RECORDED:
            return result
    traits = traits_of(func)
    if traits.is_metadata_only:
        return dispatch(owner, func, types, args, kwargs)
    if _has_foreign_class(types):
        return NotImplemented
    if _must_decompose(func, traits, args):
        return decompose(owner, func, args, kwargs or {})
    kwargs = kwargs or {}
    if mode.mark == DEFERRED_AS_META and kwargs.get("device") == devices.META:
        # a fake that reports meta was asked for its device
        kwargs = {**kwargs, "device": devices.CPU}
    if is_sparse(func, args, kwargs):
        return run_sparse(func, args, kwargs, _run_unrecorded, mode.mark)
    return record(func, traits, args, kwargs, _run_unrecorded, mode.mark)


def _recipe_for(func: Any, args: Args, kwargs: Kwargs | None) -> Recipe:
    try:
        table = _tables[id(func)][(len(args), *kwargs) if kwargs else len(args)]
        return table.recipes[table.key_of(args, kwargs)]
    except (KeyError, TypeError):
        return _NO_RECIPE


def _run_unrecorded(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Return the result of an operation, from a recipe if there is one, without recording it."""
    recipe = _recipe_for(func, args, kwargs)
    if recipe is _NO_RECIPE or not guards_hold(recipe):
        followed = _follow(func, args, kwargs)
        return _run_and_cache(func, args, kwargs) if followed is None else followed
    fast, returned = recipe.for_deferred
    if returned is not None and not (recipe.has_plain_arguments and recipe.computes_values):
        return args[returned]
    if fast is None or fast.base is not None or (recipe.computes_values and not _is_recording()):
        return _apply(recipe, func, args, kwargs)
    inference.seen = inference.seen or in_inference_mode()
    fake = _make_wrapper(*fast.wrapper)
    storage = storage_of_kind(fast.kind, None)  # `record` sets its origin
    fake._fake_attributes = {"_fake_meta": fast.record, "_fake_storage": storage}
    return fake


FakeTensor.__torch_dispatch__ = classmethod(dispatch)  # type: ignore[assignment]


class FakeDispatch(dispatcher.SlotMode):
    """The mode in torch's FAKE slot while a fake mode is on: torch dispatches factories to it."""

    is_recording = False  # whether composites are decomposed as in eager: see set_fake_mode
    supports_higher_order_operators = True
    shape_env = None  # make_fx reads this attribute of the mode in the slot
    __torch_dispatch__ = dispatch

    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    def active(self) -> Restoring:
        """Context: this mode is in the FAKE slot, and operators are dispatched to it."""
        return dispatcher.in_fake_slot(self)


class FactoryWatch(FakeDispatch):
    """The mode in the FAKE slot while a torch function runs on a deferred fake outside all modes.
    It records the factories that C++ calls: see ``_tensor/torch_function``.
    """

    is_recording = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        device = (kwargs or {}).get("device")
        is_carrier = device is not None and devices.decode(device) != device
        if is_carrier and not any(issubclass(cls, FakeTensor) for cls in types):
            return record(func, traits_of(func), args, kwargs or {}, _run_unrecorded, DEFERRED)
        if any(issubclass(cls, FakeTensor) for cls in types):
            return dispatch(self, func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


modes.recording.factory_mode = FactoryWatch()


rules.connect(dispatch, FakeDispatch)


class DeferredDispatch(FakeDispatch):
    """The mode in the FAKE slot while a deferred mode is on."""

    is_recording = True
    __torch_dispatch__ = dispatch_deferred
