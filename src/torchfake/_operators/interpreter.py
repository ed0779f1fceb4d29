"""The general procedure for an operator on fakes: run it on meta tensors and wrap what comes back.

Input: an operator and its arguments, fakes among them (or a factory inside a mode). Output: its
result, as fakes. Invariant: a real tensor is written only by an operator with no fake among its
arguments, no generator moves, and an argument's metadata is changed only after the operator has
succeeded.

The operator runs once, on meta tensors that alias as the fakes do. Its results are then identified:
the meta tensor of an argument becomes that argument, a meta tensor on the meta storage of a
:class:`Storage` becomes a view of it, and any other result is a new fake. If the values of all
inputs are known, those of the result follow, now or when they are read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from torchfake._core import devices as _devices
from torchfake._core import source_location
from torchfake._core.metadata import metadata_of
from torchfake._core.schemas import RESIZES
from torchfake._core.storage import PinnedMemory, Storage, new_meta_storage, storage_of
from torchfake._operators import random_values
from torchfake._operators.argument_checks import check_arguments
from torchfake._operators.composites.sums import as_engine_adds
from torchfake._operators.constant_propagation import is_known, propagate_values
from torchfake._operators.data_dependent import run_on_known_values
from torchfake._operators.in_place import check_size
from torchfake._operators.meta_kernels.counted import COUNTED
from torchfake._operators.meta_kernels.first_use import replacement_for
from torchfake._operators.meta_kernels.parts import kernel_for
from torchfake._operators.operator_call import (
    Args,
    Call,
    Kwargs,
    check_list_devices,
    devices_of_results,
    increment_versions,
    output_device,
    results_on_cpu,
)
from torchfake._random import mt19937
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy, new_fake, rebind
from torchfake._torch import kernels, subclass, zero_tensors
from torchfake._unknown_values import answerers
from torchfake.errors import UnsupportedOpError

_META = _devices.META
_CPU = torch.device("cpu")


def interpret(func: Any, args: Args, kwargs: Kwargs, *, needs_values: bool | None = None) -> Any:
    """Run `func` on fakes, or on plain meta or real tensors inside a mode.

    `needs_values` overrides the operator's traits, for a handler that has read the arguments.
    """
    call = Call(func, args, kwargs)
    if not any(isinstance(t, FakeTensor) for t in call.tensors):
        is_done, result = _run_without_fakes(call)
        if is_done:
            return result
    call.device = output_device(call)
    check_arguments(call)
    check_size(call)
    check_list_devices(call)
    if needs_values is None:
        needs_values = (
            call.traits.is_data_dependent and replacement_for(func, call.device.type) is None
        )
    counted = COUNTED.get(call.traits.packet)
    if counted is not None and not all(map(is_known, call.tensors)):
        is_answered, result = _with_answered_count(call, counted)
        if is_answered:
            return result
    if needs_values:
        return run_on_known_values(call)
    try:
        result = wrap(call, as_engine_adds(func, args, run_on_meta(call)))
    except _NeedsValuesError:
        return run_on_known_values(call)
    propagate_values(call, result)  # reads the arguments' old metadata
    _update_mutated_fakes(call)
    return result


def _run_without_fakes(call: Call) -> tuple[bool, Any]:
    """Run an operator that has no fakes among its inputs, inside a mode, if its results are not to
    be fakes. Return whether it was run, and its result.

    The operator is run on plain meta tensors, and on real tensors that it views, writes or reads.
    Results computed from real tensors are fakes, except copies of the state of a generator.
    """
    named = call.kwargs.get("device")
    if named is not None:
        if _devices.resolve(named).type == "meta":
            return True, call.func(*call.args, **call.kwargs)
        return False, None
    tensors = call.tensors
    if not tensors:
        return False, None
    if all(t.is_meta for t in tensors):
        return True, call.func(*call.args, **call.kwargs)
    traits = call.traits
    if traits.packet == "aten::clone" and mt19937.is_state(tensors[0]):
        return True, call.func(*call.args, **call.kwargs)  # generators read its memory
    if traits.is_random and traits.mutated_names:
        return True, random_values.draw_for_real(call)
    if traits.mutated_names or traits.is_view or not traits.returns_tensors:
        return True, call.func(*call.args, **call.kwargs)
    return False, None


def _with_answered_count(call: Call, counted: Any) -> tuple[bool, Any]:
    """Return whether the length of the operator's result, which depends on unknown values, is
    answered or has only one possibility, and the result of this length.
    """
    if "out" in call.kwargs:
        return False, None
    found = counted(*call.args, **call.kwargs)
    if found is None:
        return False, None
    tensor, lowest, highest, results = found
    if is_known(tensor) or not isinstance(tensor, FakeTensor):
        return False, None
    count: int | None = lowest
    if lowest != highest:
        count = answerers.count_of(tensor, call.traits.name, lowest, highest)
    return count is not None, None if count is None else wrap(call, results(count))


# The run on meta tensors.


def run_on_meta(call: Call) -> Any:
    """Run the operator on meta tensors that alias as the arguments do."""
    args = tuple(_to_meta(call, a) for a in call.args)
    kwargs = {name: _to_meta(call, a) for name, a in call.kwargs.items()}
    kwargs.pop("pin_memory", None)  # only for the allocator; meta kernels refuse it
    if kwargs.get("generator") is not None:
        kwargs["generator"] = None
    if "device" in kwargs or (not call.tensors and _takes_device(call.func)):
        kwargs["device"] = _META  # a factory without it, as TorchScript calls it, would draw
    if call.func.namespace not in _BUILTIN:
        result = kernels.run_fake_impl(call.func, _Sizes(call), args, kwargs)
        if result is not NotImplemented:
            return result
    try:
        return kernel_for(call.func, call.device.type)(*args, **kwargs)
    except NotImplementedError as error:
        decomposition = kernels.decomposition_of(call.func)
        if decomposition is None:
            raise _unsupported(call) from error
        return decomposition(*args, **kwargs)
    except (AssertionError, KeyError) as error:  # KeyError: of a dtype
        if call.func.namespace not in _BUILTIN:
            raise
        raise RuntimeError(str(error)) from error  # where eager's C++ has a TORCH_CHECK


@cache
def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


_BUILTIN = ("aten", "prims")


class _NeedsValuesError(Exception):
    """The size of a result depends on unknown values, and no answerer gives the size."""


class _Sizes:
    """``torch.library.get_ctx()`` of a custom operator whose results' sizes depend on values."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        fakes = [t for t in self._call.tensors if isinstance(t, FakeTensor) and not is_known(t)]
        name = self._call.traits.name
        count = answerers.count_of(fakes[0], name, min, max) if fakes else None
        if count is None:
            raise _NeedsValuesError
        return count

    create_unbacked_symint = new_dynamic_size


_NEEDS_MEMORY = {
    "aten.from_file.default": "it maps a file into memory, and a fake has none. Map it outside "
    "of the mode, or keep the tensors in memory"
}


def _unsupported(call: Call) -> UnsupportedOpError:
    reason = _NEEDS_MEMORY.get(call.traits.name)
    if reason is not None:
        return UnsupportedOpError(f"{call.traits.name} is not possible inside a mode: {reason}")
    return UnsupportedOpError(
        f"torch {torch.__version__} has no meta kernel and no decomposition for "
        f"{call.traits.name}. For a custom operator, register one with torch.library.register_fake"
    )


def _to_meta(call: Call, value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return _meta_argument(call, value)
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else _meta_of_real(call, value)
    if isinstance(value, (list, tuple)):
        return [_to_meta(call, item) for item in value]
    if isinstance(value, torch.device):
        return _META
    return value


def _meta_argument(call: Call, fake: FakeTensor) -> torch.Tensor:
    """The meta tensor that stands for `fake` in this call, on its storage's meta storage."""
    known = call.metas_by_fake.get(id(fake))
    if known is not None:
        return known
    meta = call.metas_by_fake[id(fake)] = meta_counterpart(fake)
    call.fakes_by_meta[id(meta)] = (meta, fake)
    key = subclass.storage_key(meta.untyped_storage())
    call.storages_by_key[key] = fake._fake_storage
    return meta


def meta_counterpart(fake: FakeTensor) -> torch.Tensor:
    """A plain meta tensor with the metadata of `fake`, on its storage's meta storage."""
    record = fake._fake_meta
    if record.zero:
        place = record.size, record.stride, record.offset, record.dtype
        return zero_tensors.zero_tensor(*place, _META)
    meta = torch.empty(0, dtype=record.dtype, device=_META)
    untyped: torch.UntypedStorage = fake._fake_storage.meta
    needed = record.end_bytes
    if needed > untyped.nbytes():  # FSDP resized the storage to 0, and set_ would enlarge it
        untyped = new_meta_storage(needed)
    meta.set_(untyped, record.offset, record.size, record.stride)
    subclass.set_conj_and_neg(meta, record.conj, record.neg)
    return meta


def _meta_of_real(call: Call, real: torch.Tensor) -> torch.Tensor:
    if torch.nn.parameter.is_lazy(real):
        raise UnsupportedOpError(
            f"{call.traits.name} of a parameter that has no shape yet, of a lazy module that was "
            "made outside of the mode. Make the module in the mode, or convert its fake copy, "
            "torchfake.fake_like(module)"
        )
    if zero_tensors.is_zero_tensor(real):
        return meta_counterpart(fake_copy(real))
    meta = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=_META)
    if call.traits.packet == "aten::_has_same_storage_numel":  # a view has its base's storage
        meta.untyped_storage().resize_(real.untyped_storage().nbytes())
    subclass.set_conj_and_neg(meta, real.is_conj(), real.is_neg())
    return meta


# Results.


def wrap(call: Call, result: Any) -> Any:
    """Wrap the results of a run on meta tensors as fakes."""
    if isinstance(result, torch.Tensor):
        return _wrap_tensor(call, result, call.device)
    if isinstance(result, (list, tuple)):
        devices = _element_devices(call, len(result))
        items = [
            _wrap_tensor(call, item, device) if isinstance(item, torch.Tensor) else wrap(call, item)
            for item, device in zip(result, devices, strict=True)
        ]
        return items if isinstance(result, list) else tuple(items)
    return result


def _element_devices(call: Call, num_elements: int) -> list[torch.device]:
    if call.traits.is_foreach:
        return devices_of_results(call)
    on_cpu = results_on_cpu(call)
    return [_CPU if index in on_cpu else call.device for index in range(num_elements)]


def _wrap_tensor(call: Call, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Wrap one result: an argument itself, a view of an argument's storage, or a new fake."""
    if device.type == "meta":  # even the meta tensor of an argument: ``fake.to("meta")``
        return meta
    found = call.fakes_by_meta.get(id(meta))
    if found is not None:
        return found[1]
    if meta.layout != torch.strided:
        raise UnsupportedOpError(
            f"{call.traits.name} gives a tensor of layout {meta.layout}; fakes are strided"
        )
    untyped = meta.untyped_storage()
    storage = call.storages_by_key.get(subclass.storage_key(untyped))
    if storage is None:
        storage = _new_storage(call, untyped, device)
    return new_fake(metadata_of(meta, device), storage)


def _new_storage(call: Call, untyped: torch.UntypedStorage, device: torch.device) -> Storage:
    storage = Storage(untyped.nbytes(), device, call.func, source_location.caller_location(3))
    if call.kwargs.get("pin_memory"):
        if device.type != "cpu":
            raise RuntimeError("Only dense CPU tensors can be pinned")  # as eager does
        storage.pinned = PinnedMemory()
    call.storages_by_key[subclass.storage_key(untyped)] = storage
    return storage


def _update_mutated_fakes(call: Call) -> None:
    """Give each written fake the metadata that its meta tensor has after the run."""
    if not call.traits.mutated_names:
        return
    if call.traits.kernel_counts_writes:
        increment_versions(call)
    for meta, fake in call.fakes_by_meta.values():
        storage = call.storages_by_key.get(subclass.storage_key(meta.untyped_storage()))
        device = fake._fake_meta.device
        if storage is None:
            storage = storage_of(meta.untyped_storage(), device)
        record = metadata_of(meta, device)
        if call.traits.packet in RESIZES:  # the memory may have been freed: see meta_counterpart
            needed = record.end_bytes
            if needed > storage.num_bytes:
                storage.resize(needed)
        if record is not fake._fake_meta or storage is not fake._fake_storage:
            rebind(fake, record, storage)
