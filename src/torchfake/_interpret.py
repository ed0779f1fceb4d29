"""One operation on fakes, by the rule that fits nearly all of them.

Enters: an operator and its arguments, fakes among them (or a factory inside a mode). Leaves: its
result, as fakes. The operator runs once, on meta tensors that alias as the fakes do; what it
returns is read back: the same meta tensor is the same fake, the same meta storage is the same
:class:`Storage`, anything else is new. Where every input's value is known, it runs on those too.
Invariant: no real tensor is written, no generator moves, and an argument's metadata is changed
only after the operator has succeeded.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake import _device, _origin, _private
from torchfake._call import Args, Call, Kwargs, count_writes, device_of, output_device
from torchfake._checks import check
from torchfake._follow import follow_values, from_values_alone
from torchfake._metadata import Pinned, Storage, bytes_spanned, metadata_of, new_untyped, storage_of
from torchfake._rules import rule_for
from torchfake._tensor import FakeTensor, become, new_fake
from torchfake.errors import UnsupportedOpError

_META = _device.META


def interpret(func: Any, args: Args, kwargs: Kwargs, *, needs_values: bool | None = None) -> Any:
    """Run `func` on fakes; on plain meta or real tensors alone, as :func:`_outsiders` says.

    `needs_values` overrides the plan where a handler has looked at the arguments.
    """
    call = Call(func, args, kwargs)
    if not any(isinstance(t, FakeTensor) for t in call.tensors):
        settled, result = _outsiders(call)
        if settled:
            return result
    call.device = output_device(call)
    check(call)
    if needs_values is None:
        needs_values = call.plan.needs_values and rule_for(func, call.device.type) is None
    if needs_values:
        return from_values_alone(call)
    result = wrap(call, run_on_meta(call))
    follow_values(call, result)  # which looks at arguments as they came
    _write_back(call)
    return result


def _outsiders(call: Call) -> tuple[bool, Any]:
    """Operations inside a mode that have no fake among their inputs.

    Plain meta tensors stay what the user asked for. Real tensors may be viewed, written and read
    as ever; what would be computed from them is fake.
    """
    named = call.kwargs.get("device")
    if named is not None:
        if _device.resolve(named).type == "meta":
            return True, call.func(*call.args, **call.kwargs)
        return False, None
    tensors = call.tensors
    if not tensors:
        return False, None
    if all(t.is_meta for t in tensors):
        return True, call.func(*call.args, **call.kwargs)
    plan = call.plan
    if plan.written_names or plan.is_view or not plan.gives_tensors:
        return True, call.func(*call.args, **call.kwargs)
    return False, None


# The run on meta tensors.


def run_on_meta(call: Call) -> Any:
    """What the operator gives for meta tensors that alias as the arguments do."""
    args = tuple(_to_meta(call, a) for a in call.args)
    kwargs = {name: _to_meta(call, a) for name, a in call.kwargs.items()}
    kwargs.pop("pin_memory", None)  # meta kernels refuse what is only a hint to the allocator
    if kwargs.get("generator") is not None:
        kwargs["generator"] = None
    if "device" in kwargs:
        kwargs["device"] = _META
    rule = rule_for(call.func, call.device.type)
    try:
        return (rule or call.func)(*args, **kwargs)
    except NotImplementedError as error:
        decomposition = _private.decomposition_of(call.func)
        if decomposition is None:
            raise _unsupported(call) from error
        return decomposition(*args, **kwargs)


def _unsupported(call: Call) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"torch {torch.__version__} has no meta kernel and no decomposition for {call.plan.name}. "
        "For a custom operator, register one with torch.library.register_fake"
    )


def _to_meta(call: Call, value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return meta_argument(call, value)
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else _meta_of_real(value)
    if isinstance(value, (list, tuple)):
        return [_to_meta(call, item) for item in value]
    if isinstance(value, torch.device):
        return _META
    return value


def meta_argument(call: Call, fake: FakeTensor) -> torch.Tensor:
    """The meta tensor that stands for `fake` in this call, on its storage's meta storage."""
    for meta, known in call.by_meta.values():
        if known is fake:
            return meta
    meta = meta_twin(fake)
    call.by_meta[id(meta)] = (meta, fake)
    key = _private.storage_key(meta.untyped_storage())
    call.by_storage[key] = fake._fake_storage
    return meta


def meta_twin(fake: FakeTensor) -> torch.Tensor:
    """A plain meta tensor with the metadata of `fake`, on its storage's meta storage."""
    record = fake._fake_meta
    meta = torch.empty(0, dtype=record.dtype, device=_META)
    untyped: torch.UntypedStorage = fake._fake_storage.untyped
    needed = bytes_spanned(record.size, record.stride, record.offset, record.dtype.itemsize)
    if needed > untyped.nbytes():  # it was resized away (FSDP does): set_ would bring it back
        untyped = new_untyped(needed, record.device)
    meta.set_(untyped, record.offset, record.size, record.stride)
    _private.set_bits(meta, record.conj, record.neg)
    return meta


def _meta_of_real(real: torch.Tensor) -> torch.Tensor:
    meta = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=_META)
    _private.set_bits(meta, real.is_conj(), real.is_neg())
    return meta


# Results.


def wrap(call: Call, result: Any) -> Any:
    """Results of a meta run as fakes."""
    if isinstance(result, torch.Tensor):
        return wrap_tensor(call, result, call.device)
    if isinstance(result, (list, tuple)):
        devices = _element_devices(call, len(result))
        items = [
            wrap_tensor(call, item, device) if isinstance(item, torch.Tensor) else wrap(call, item)
            for item, device in zip(result, devices, strict=True)
        ]
        return items if isinstance(result, list) else tuple(items)
    return result


def _element_devices(call: Call, num_elements: int) -> list[torch.device]:
    if call.plan.per_element and len(call.args[0]) == num_elements:
        return [device_of(t) or call.device for t in call.args[0]]
    return [call.device] * num_elements


def wrap_tensor(call: Call, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """One result: the argument it is, a view of the storage it looks at, or something new."""
    known = call.by_meta.get(id(meta))
    if known is not None:
        return known[1]
    if device.type == "meta":
        return meta
    if meta.layout != torch.strided:
        raise UnsupportedOpError(
            f"{call.plan.name} gives a tensor of layout {meta.layout}; fakes are strided"
        )
    untyped = meta.untyped_storage()
    storage = call.by_storage.get(_private.storage_key(untyped))
    if storage is None:
        storage = _new_storage(call, untyped, device)
    return new_fake(metadata_of(meta, device), storage)


def _new_storage(call: Call, untyped: torch.UntypedStorage, device: torch.device) -> Storage:
    storage = Storage(untyped.nbytes(), device, call.func, _origin.here(3))
    if call.kwargs.get("pin_memory"):
        storage.pinned = Pinned()
    call.by_storage[_private.storage_key(untyped)] = storage
    return storage


def _write_back(call: Call) -> None:
    """Give written fakes the metadata their meta tensors have now."""
    if not call.plan.written_names:
        return
    if call.plan.per_element:
        count_writes(call)
    for meta, fake in call.by_meta.values():
        storage = call.by_storage.get(_private.storage_key(meta.untyped_storage()))
        device = fake._fake_meta.device
        if storage is None:
            storage = storage_of(meta.untyped_storage(), device)
        record = metadata_of(meta, device)
        if record is not fake._fake_meta or storage is not fake._fake_storage:
            become(fake, record, storage)
