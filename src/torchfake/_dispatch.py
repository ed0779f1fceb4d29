"""The dispatcher of torchfake: every operation on fakes comes through here.

Input: what torch hands to ``__torch_dispatch__``, from a mode or from a fake: an operator, the
classes of its arguments, the arguments. Output: the result: made from a recipe if the cache has
one, else by a special operator's handler or the interpreter, or recorded if it is deferred.
Invariant: tensors of classes that are not ours run their own ``__torch_dispatch__`` first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake._cache import cache, rules
from torchfake._cache.apply import apply_recipe
from torchfake._cache.recipes import Recipe, guards_hold
from torchfake._cache.rules import inference
from torchfake._core import devices, modes, source_location
from torchfake._core.metadata import DEFERRED, DEFERRED_AS_META, PLAIN
from torchfake._core.schemas import DONE_BY_OTHERS, OpTraits, traits_of
from torchfake._core.storage import storage_of_kind
from torchfake._eager_checks.dtypes import check_dtypes
from torchfake._eager_checks.overlaps import check_overlaps
from torchfake._eager_checks.strings import check_strings
from torchfake._operators import composites as _composites  # noqa: F401  registers its kernels
from torchfake._operators.cuda.first_use import COMPOSED_ELSEWHERE
from torchfake._operators.higher_order.kernels import run as run_higher_order
from torchfake._operators.interpreter import interpret
from torchfake._operators.meta_kernels.first_use import has_replacement
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._operators.special_operators import LIFTS, handler_of, lift
from torchfake._recording.arguments import has_deferred_arguments
from torchfake._recording.eager import first_use as _first_use  # noqa: F401  registers its kernels
from torchfake._recording.hits import NOT_RECORDED, record_hit
from torchfake._recording.record import record
from torchfake._tensor.fake_tensor import FakeTensor, new_fake, with_version_counter
from torchfake._torch import autograd, dispatcher, kernels, subclass
from torchfake._torch.compiler import higher_order
from torchfake._torch.contexts import Restoring

_tables = cache.tables
_make_wrapper = subclass.make_wrapper
_default_dtype = torch.get_default_dtype
_in_inference_mode = torch.is_inference_mode_enabled
_is_recording = modes.is_recording
_getframe = sys._getframe
_caller_location = source_location.caller_location
_new_location = source_location.new_location
_locations_in = source_location.locations_in.cached


_NO_RECIPE = Recipe(outcome=None, op=None)


def dispatch(
    owner: Any, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
) -> Any:
    """Run one operator. `owner` is the mode or the class that torch calls it on.

    This is the hot path, in one piece because a Python call costs 2 % of a hit; what is called
    often does not even come here (``_cache/rules``). A call with an argument of a class that is not
    ours never gets past its key: such arguments have no metadata record.
    """
    try:
        table = _tables[id(func)][(len(args), *kwargs) if kwargs else len(args)]
        key_of, recipes, _ = table
        recipe = recipes[key_of(args, kwargs)]
    except (KeyError, TypeError):
        recipe = _NO_RECIPE  # and on below: an error raised here would show this as its context
    fast = recipe.fast
    if fast is None:
        returned, write = recipe.returned_argument, recipe.write
        if returned is None or (write is not None and not write(args)):
            return _slow_hit(recipe, func, types, args, kwargs or {}, owner)
        return args[returned]
    record, wrapper, base, default_dtype, kind, value, make_value = fast
    if default_dtype is not None and default_dtype is not _default_dtype():
        return _miss(func, types, args, kwargs or {}, owner)
    if make_value is not None:
        value = make_value(args, kwargs)
        if value is None:
            return _slow_hit(recipe, func, types, args, kwargs or {}, owner)
    if base is None:
        if _in_inference_mode():
            inference.seen = True
        frame = _getframe(1)
        code = frame.f_code
        known = _locations_in.get(id(code))
        if known is None:  # of a library, or new
            location = _caller_location(2)
        else:
            instruction = frame.f_lasti
            location = known.get(instruction) or _new_location(code, instruction)
        storage = storage_of_kind(kind, location, value)
    elif _in_inference_mode() or (inference.seen and args[base].is_inference()):
        return _slow_hit(recipe, func, types, args, kwargs or {}, owner)
    else:
        storage = args[base]._fake_storage
    fake = _make_wrapper(*wrapper)
    fake._fake_attributes = {"_fake_meta": record, "_fake_storage": storage}
    return fake


def _slow_hit(
    recipe: Recipe, func: Any, types: Any, args: Args, kwargs: Kwargs, owner: Any = None
) -> Any:
    """A hit that takes more than one new wrapper, or a miss."""
    if recipe is _NO_RECIPE or not guards_hold(recipe):
        return _miss(func, types, args, kwargs, owner)
    if recipe.is_recorded:
        if recipe.recording is not None:
            result = record_hit(recipe.recording, func, args, kwargs, PLAIN)
            if result is not NOT_RECORDED:
                return result
        return record(func, traits_of(func), args, kwargs, _run_unrecorded)
    return _apply(recipe, func, args, kwargs)


def _apply(recipe: Recipe, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if _in_inference_mode() != _is_inference(args):
        return _as_kind_of_argument(partial(apply_recipe, recipe), func, args, kwargs)
    return apply_recipe(recipe, func, args, kwargs)


def _miss(func: Any, types: Any, args: Args, kwargs: Kwargs, owner: Any = None) -> Any:
    """No outcome of such a call is cached yet, or it never is."""
    if not isinstance(func, OpOverload):
        with higher_order.mode_put_back(owner):
            return run_higher_order(func, args, kwargs)
    if _has_foreign_class(types):
        return NotImplemented
    if id(func) in LIFTS and not types and not _in_inference_mode():
        return lift(func, args, kwargs)  # each BatchNorm counts from torch.tensor(0)
    traits = traits_of(func)
    if _is_done_in_parts(func, traits, args):
        return _in_parts(owner, func, args, kwargs)
    if has_deferred_arguments(args, kwargs):
        return record(func, traits, args, kwargs, _run_unrecorded)
    if not traits.returns_tensors or not kernels.is_decomposed_in_cpp(func):
        return _run_and_cache(func, args, kwargs)
    if traits.is_random or traits.product_kind == "rnn":
        return _in_parts(owner, func, args, kwargs)  # each draw takes its place
    return _run_and_cache(func, args, kwargs, partial(_run_in_parts, owner))


def _is_done_in_parts(func: Any, traits: OpTraits, args: Args) -> bool:
    """Whether C++ has an operator done by others. It does so before anything is dispatched to
    Python, but in inference mode, of inference tensors, and where the class of a wrapper handles an
    operation. There ``to`` compares devices, which meta tensors have not, some read values, and
    some give views, which are of the kind of their base; outside of inference mode, copies are not.
    """
    if traits.packet == "aten::to":
        return True
    is_by_others = traits.packet in DONE_BY_OTHERS
    if _in_inference_mode() or not (is_by_others or traits.is_view):
        return is_by_others
    first = args[0] if args and isinstance(args[0], list) else args[:1]
    is_of_inference = any(_is_inference((each,)) for each in first)
    return is_of_inference and (is_by_others or kernels.is_decomposed_in_cpp(func))


def _in_parts(owner: Any, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Do an operator by those of which C++ composes it, as eager does, in the mode that sees it."""
    mode = owner if isinstance(owner, FakeDispatch) else None
    with higher_order.mode_put_back(mode), dispatcher.views_noted(_in_inference_mode()):
        return kernels.decompose(func, args, kwargs)


def _run_in_parts(owner: Any, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The same once, for its recipe, where nothing else is known of it."""
    is_whole = func in COMPOSED_ELSEWHERE and args[0].device.type == "cuda"
    if is_whole or handler_of(func) or traits_of(func).is_view or has_replacement(func):
        return _run(func, args, kwargs)
    return _in_parts(owner, func, args, kwargs)


def _has_foreign_class(types: Any) -> bool:
    """Whether there are classes of others, as DTensor, that handle the operation first. They come
    back here with the tensors that they wrap.
    """
    for cls in types:
        own = cls.__torch_dispatch__
        if not issubclass(cls, FakeTensor) and own is not subclass.disabled_torch_dispatch:
            return True
    return False


def _run_and_cache(func: Any, args: Args, kwargs: Kwargs, run: Any = None) -> Any:
    run = run or _run
    if _in_inference_mode() != _is_inference(args):
        return _as_kind_of_argument(partial(cache.run_and_cache, run), func, args, kwargs)
    return cache.run_and_cache(run, func, args, kwargs)


def _is_inference(args: Args) -> bool:
    inference.seen = inference.seen or _in_inference_mode()
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_inference()


def _as_kind_of_argument(
    run: Callable[[Any, Args, Kwargs], Any], func: Any, args: Args, kwargs: Kwargs
) -> Any:
    """Run an operation in inference mode whose first argument is no inference tensor, or outside of
    it, where that is one. A view is an inference tensor if and only if its base is; a copy, which
    ``reshape`` makes where it can give no view, if and only if it is made in inference mode.
    """
    traits, is_inference = traits_of(func), _in_inference_mode()
    if not traits.keeps_inference or not isinstance(args[0], FakeTensor):
        return run(func, args, kwargs)
    if is_inference and traits.is_view and kernels.is_noted_in_parts(func):
        with dispatcher.views_noted(True):  # which are not yet: it has come here in one piece
            return kernels.decompose(func, args, kwargs)
    with autograd.inference_mode(not is_inference):
        result = run(func, args, kwargs)
    if is_inference or not isinstance(result, FakeTensor):
        return result
    if result._fake_storage is not args[0]._fake_storage:
        return new_fake(result._fake_meta, result._fake_storage)
    return with_version_counter(result) if func is torch.ops.aten.detach.default else result


def _run(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run the operator without the cache."""
    check_overlaps(func, args, kwargs)
    check_strings(func, args, kwargs)
    check_dtypes(func, args, kwargs)
    run = handler_of(func) or interpret
    return run(func, args, kwargs)


# Deferred modes.


def dispatch_deferred(
    owner: Any, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
) -> Any:
    """The same in a deferred mode, where every operation that makes a tensor is recorded."""
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
    if _is_done_in_parts(func, traits, args):
        return _in_parts(owner, func, args, kwargs or {})
    kwargs = kwargs or {}
    if mode.mark == DEFERRED_AS_META and kwargs.get("device") == devices.META:
        # a fake that reports meta was asked for its device
        kwargs = {**kwargs, "device": devices.CPU}
    return record(func, traits, args, kwargs, _run_unrecorded, mode.mark)


def _recipe_for(func: Any, args: Args, kwargs: Kwargs | None) -> Recipe:
    try:
        table = _tables[id(func)][(len(args), *kwargs) if kwargs else len(args)]
        return table.recipes[table.key_of(args, kwargs)]
    except (KeyError, TypeError):
        return _NO_RECIPE


def _run_unrecorded(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The result of an operation, from a recipe where there is one; nothing is recorded."""
    recipe = _recipe_for(func, args, kwargs)
    if recipe is _NO_RECIPE or not guards_hold(recipe):
        return _run_and_cache(func, args, kwargs)
    fast, returned = recipe.unrecorded
    if returned is not None and not (recipe.has_plain_arguments and recipe.computes_values):
        return args[returned]
    if fast is None or fast.base is not None or (recipe.computes_values and not _is_recording()):
        return _apply(recipe, func, args, kwargs)
    inference.seen = inference.seen or _in_inference_mode()
    fake = _make_wrapper(*fast.wrapper)
    storage = storage_of_kind(fast.kind, None)  # `record` sets its origin
    fake._fake_attributes = {"_fake_meta": fast.record, "_fake_storage": storage}
    return fake


FakeTensor.__torch_dispatch__ = classmethod(dispatch)  # type: ignore[assignment]


class FakeDispatch(TorchDispatchMode):
    """The mode in torch's FAKE slot while a fake mode is on: factories are dispatched to it."""

    _mode_key = dispatcher.FAKE_SLOT
    is_recording = False  # whether composites run as eager runs them: see set_fake_mode
    supports_higher_order_operators = True
    shape_env = None  # make_fx asks whatever is in the slot for symbolic sizes
    __torch_dispatch__ = dispatch

    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Stays below user modes, as torch's own fake mode does."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Never traced by torch.compile, so not wrapped for it: the wrapper costs 2 us a call."""
        return False

    def active(self) -> Restoring:
        """Context: this is in the FAKE slot, and sees what is dispatched."""
        return dispatcher.in_fake_slot(self)


class FactoryWatch(FakeDispatch):
    """Records factories that C++ calls while a torch function runs on a deferred fake outside all
    modes: see ``_tensor/torch_function``.
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
