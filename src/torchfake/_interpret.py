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

from torchfake import _device, _draws, _origin, _private, _state, _values
from torchfake._metadata import Metadata, Storage, intern, metadata_of, storage_of
from torchfake._ops import OpPlan, plan_of
from torchfake._rules import rule_for
from torchfake._tensor import FakeTensor, become, fake_twin, new_fake
from torchfake.errors import RealTensorWriteError, UnsupportedOpError

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
_META = _device.META


class Call:
    """One operation on its way: its arguments as fakes, as meta tensors and, if known, as values."""

    __slots__ = ("args", "by_meta", "by_storage", "device", "func", "kwargs", "plan", "tensors")

    def __init__(self, func: Any, args: Args, kwargs: Kwargs) -> None:
        self.func = func
        self.plan: OpPlan = plan_of(func)
        self.args = args
        self.kwargs = kwargs
        self.tensors = tensors_in(args, kwargs)
        self.device = _device.CPU
        self.by_meta: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self.by_storage: dict[int, Storage] = {}


def interpret(func: Any, args: Args, kwargs: Kwargs, *, needs_values: bool | None = None) -> Any:
    """Run `func` on fakes; on plain meta or real tensors alone, as :func:`_outsiders` says.

    `needs_values` overrides the plan where a handler has looked at the arguments.
    """
    call = Call(func, args, kwargs)
    if not any(isinstance(t, FakeTensor) for t in call.tensors):
        settled, result = _outsiders(call)
        if settled:
            return result
    _check_no_real_write(call)
    call.device = output_device(call)
    if needs_values is None:
        needs_values = call.plan.needs_values and rule_for(func, call.device.type) is None
    if needs_values:
        return _from_values_alone(call)
    result = wrap(call, run_on_meta(call))
    _write_back(call)
    _follow_values(call, result)
    return result


def tensors_in(args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The tensors among the arguments, lists of tensors opened."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found


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
    if plan.written_names or plan.is_view or not _gives_tensors(call.func):
        return True, call.func(*call.args, **call.kwargs)
    return False, None


def _gives_tensors(func: Any) -> bool:
    return any("Tensor" in str(r.type) for r in func._schema.returns)


def written_tensors(call: Call) -> list[torch.Tensor]:
    """The arguments that the operator writes."""
    plan, found = call.plan, []
    for i in plan.written_positions:
        if i < len(call.args):
            found.append(call.args[i])
    found.extend(call.kwargs[name] for name in plan.written_names if name in call.kwargs)
    return tensors_in(tuple(found), {})


def _check_no_real_write(call: Call) -> None:
    if not call.plan.written_names:
        return
    for tensor in written_tensors(call):
        if not isinstance(tensor, FakeTensor) and not tensor.is_meta:
            raise RealTensorWriteError(
                f"{call.plan.name} would write fake values into a real tensor of shape "
                f"{list(tensor.shape)} and dtype {tensor.dtype}. Write out of place (the result is "
                "a fake), or into its fake twin: torchfake.fake_like(tensor)"
            )


# Devices.


def device_of(tensor: torch.Tensor) -> torch.device | None:
    """A tensor's device; None for a plain meta tensor met outside a mode, which has no say.

    There, a factory inside a C++ composite asked for a fake's device and got a plain meta tensor.
    """
    if isinstance(tensor, FakeTensor):
        return tensor._fake_meta.device
    if tensor.is_meta:
        return None if _state.current() is None else _META
    return tensor.device


def output_device(call: Call) -> torch.device:
    """Where the result is: an explicit device, else the arguments' common one."""
    named = call.kwargs.get("device")
    if named is None:
        named = next((a for a in call.args if isinstance(a, torch.device)), None)
    if named is not None:
        return _device.resolve(named)
    if call.plan.mixes_devices and call.tensors:
        return device_of(call.tensors[0]) or _device.CPU
    return common_device(call.plan.name, call.tensors)


def common_device(name: str, tensors: list[torch.Tensor]) -> torch.device:
    """The one device of `tensors`; 0-dim CPU tensors go along with any."""
    device: torch.device | None = None
    only_scalars = True
    for tensor in tensors:
        own = device_of(tensor)
        if own is None:
            continue
        is_scalar = own.type == "cpu" and tensor.dim() == 0
        if device is None or (only_scalars and own != device):
            device, only_scalars = own, is_scalar
        elif own == device:
            only_scalars = only_scalars and is_scalar
        elif not is_scalar:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {own}! (when checking the arguments of {name})"
            )
    return device or _device.CPU


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
    meta.set_(fake._fake_storage.untyped, record.offset, record.size, record.stride)  # type: ignore[call-overload]
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
    storage = Storage(untyped.nbytes(), device)
    storage.op = call.func
    storage.origin = _origin.here(3)
    call.by_storage[_private.storage_key(untyped)] = storage
    return storage


def _write_back(call: Call) -> None:
    """Give written fakes the metadata their meta tensors have now."""
    if not call.plan.written_names:
        return
    for meta, fake in call.by_meta.values():
        storage = call.by_storage.get(_private.storage_key(meta.untyped_storage()))
        device = fake._fake_meta.device
        if storage is None:
            storage = storage_of(meta.untyped_storage(), device)
        record = metadata_of(meta, device)
        if record is not fake._fake_meta or storage is not fake._fake_storage:
            become(fake, record, storage)


# Values.


def value_argument(value: Any) -> Any:
    """An argument with fakes replaced by their values. Call only when all are known."""
    if isinstance(value, FakeTensor):
        storage = value._fake_storage.value
        assert storage is not None
        return _values.view_of(value._fake_meta, storage)
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return [value_argument(item) for item in value]
    if isinstance(value, torch.device):
        return _device.CPU
    return value


def is_known(tensor: torch.Tensor) -> bool:
    """Whether the value of a tensor is at hand: a known fake, or a small real CPU tensor."""
    if isinstance(tensor, FakeTensor):
        return tensor._fake_storage.value is not None
    if tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.element_size() <= _values.MAX_KNOWN_BYTES


def run_on_values(call: Call) -> Any:
    """What the operator gives for the values of its arguments, on the host."""
    func, kwargs = call.func, {n: value_argument(a) for n, a in call.kwargs.items()}
    kwargs.pop("pin_memory", None)
    if call.plan.is_random:
        func, kwargs = _draws.with_private_generator(func, kwargs)
    return func(*(value_argument(a) for a in call.args), **kwargs)


def _from_values_alone(call: Call) -> Any:
    """Operators whose result's very shape depends on values."""
    for tensor in call.tensors:
        if not is_known(tensor):
            if isinstance(tensor, FakeTensor):
                raise _values.unknown(tensor, call.plan.name)
            raise UnsupportedOpError(f"{call.plan.name} reads a large real tensor in a fake mode")
    return _wrap_values(call, run_on_values(call))


def _wrap_values(call: Call, result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        fake = fake_twin(result, device=call.device, known=True)
        fake._fake_storage.op, fake._fake_storage.origin = call.func, _origin.here(2)
        return fake
    if isinstance(result, (list, tuple)):
        return type(result)(_wrap_values(call, item) for item in result)
    return result


def _follow_values(call: Call, result: Any) -> None:
    """Compute the values of new results and written arguments, or forget those overwritten."""
    written = [t for t in written_tensors(call) if isinstance(t, FakeTensor)]
    fresh = _fresh_results(call, result)
    if not written and not fresh:
        return
    if _can_follow(call, written, fresh):
        if _compute_values(call, result, fresh):
            return
    for fake in written:
        fake._fake_storage.value = None


def _fresh_results(call: Call, result: Any) -> list[FakeTensor]:
    """The results that have a storage of their own."""
    if isinstance(result, FakeTensor):
        results = [result]
    elif isinstance(result, (list, tuple)):
        results = [r for r in result if isinstance(r, FakeTensor)]
    else:
        return []
    arguments = {id(t._fake_storage) for t in call.tensors if isinstance(t, FakeTensor)}
    return [r for r in results if id(r._fake_storage) not in arguments]


def _can_follow(call: Call, written: list[FakeTensor], fresh: list[FakeTensor]) -> bool:
    plan = call.plan
    if plan.is_uninitialized:
        return False
    if any(f._fake_storage.num_bytes > _values.MAX_KNOWN_BYTES for f in fresh):
        return False
    if plan.is_random and not _draws.is_known_draw(call.func, [*written, *fresh]):
        return False
    if plan.overwrites and _covers_storage(call.args[0]):
        others = call.tensors[1:]
        if call.args[0]._fake_storage.value is None and all(is_known(t) for t in others):
            storage = call.args[0]._fake_storage
            storage.value = torch.UntypedStorage(storage.num_bytes, device="cpu")
    return all(is_known(t) for t in call.tensors)


def _covers_storage(fake: FakeTensor) -> bool:
    num_bytes = fake._fake_storage.num_bytes
    covered = fake.numel() * fake.element_size()
    return num_bytes <= _values.MAX_KNOWN_BYTES and covered == num_bytes


def _compute_values(call: Call, result: Any, fresh: list[FakeTensor]) -> bool:
    """Run on values; True if every fresh result now knows its own."""
    try:
        values = run_on_values(call)
    except (NotImplementedError, RuntimeError):
        if call.device.type == "cpu":
            raise
        return False  # the host cannot do what the fake's device could
    if not fresh:
        return True  # written in place, where the values are
    pairs = [(result, values)] if isinstance(result, FakeTensor) else list(zip(result, values))
    for fake, value in pairs:
        if any(fake is f for f in fresh):
            _adopt(fake, value)
    return True


def _adopt(fake: FakeTensor, value: torch.Tensor) -> None:
    storage = fake._fake_storage
    storage.value = torch.UntypedStorage(storage.num_bytes, device="cpu")
    _values.view_of(fake._fake_meta, storage.value).copy_(value)
