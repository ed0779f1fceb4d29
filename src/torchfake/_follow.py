"""Values computed alongside metadata, where all that goes in is known.

Enters: a :class:`Call` that has its result, or one whose result is a matter of values. Leaves:
storages that know their value, or have forgotten it. Invariant: a written storage ends up with the
value eager would give it, or with none.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake import _device, _draws, _later, _memory, _origin, _state, _values
from torchfake._call import Call, written_tensors
from torchfake._metadata import Filled
from torchfake._tensor import FakeTensor, become, fake_twin
from torchfake.errors import UnsupportedOpError


def value_argument(value: Any) -> Any:
    """An argument with fakes replaced by their values. Call only when all are known."""
    if isinstance(value, FakeTensor):
        return _memory.view_of(value._fake_storage.known_bytes(), value._fake_meta)
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
    return _values.fits(tensor.numel() * tensor.element_size(), tensor.dtype)


def run_on_values(call: Call) -> Any:
    """What the operator gives for the values of its arguments, on the host."""
    for fake in written_tensors(call):
        if isinstance(fake, FakeTensor) and fake._fake_storage.value is not None:
            fake._fake_storage.own_bytes()
    func, kwargs = call.func, {n: value_argument(a) for n, a in call.kwargs.items()}
    kwargs.pop("pin_memory", None)
    if call.plan.is_random:
        func, kwargs = _draws.with_private_generator(func, kwargs)
    return func(*(value_argument(a) for a in call.args), **kwargs)


def from_values_alone(call: Call) -> Any:
    """Operators whose result's very shape depends on values."""
    outs = written_tensors(call)
    for tensor in call.tensors:
        if not is_known(tensor) and not any(tensor is out for out in outs):
            if isinstance(tensor, FakeTensor):
                raise _values.unknown(tensor, call.plan.name)
            raise UnsupportedOpError(f"{call.plan.name} reads a large real tensor in a fake mode")
    if not outs:
        return _wrap_values(call, run_on_values(call))
    return _into_out(call, call.kwargs["out"])


def _into_out(call: Call, out: FakeTensor) -> FakeTensor:
    """The same with ``out=``, which takes the shape and the value of the result."""
    result = torch.empty(0, dtype=out.dtype, device="cpu")
    args = [value_argument(arg) for arg in call.args]
    call.func(
        *args, **{n: value_argument(a) for n, a in call.kwargs.items() if n != "out"}, out=result
    )
    twin = fake_twin(result, device=out.device, known=True)
    become(out, twin._fake_meta, twin._fake_storage)
    return out


def _wrap_values(call: Call, result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        fake = fake_twin(result, device=call.device, known=True)
        fake._fake_storage.op, fake._fake_storage.place = call.func, _origin.here(2)
        return fake
    if isinstance(result, (list, tuple)):
        return type(result)(_wrap_values(call, item) for item in result)
    return result


def follow_values(call: Call, result: Any) -> None:
    """Compute the values of new results and written arguments, or forget those overwritten."""
    written = [t for t in written_tensors(call) if isinstance(t, FakeTensor)]
    fresh = _fresh_results(call, result)
    if not written and not fresh:
        return
    if _state.is_recording():
        for fake in written:
            fake._fake_storage.value = None
        return
    if call.plan.is_uninitialized and not written:
        _start_integers(fresh)
        return
    if _can_follow(call, written, fresh) and not any(map(_has_grown, written)):
        if _compute_values(call, result, fresh):
            return
    for fake in written:
        fake._fake_storage.value = None


def _start_integers(fresh: list[FakeTensor]) -> None:
    """Memory nobody has written: integers, which index and are filled in piece by piece, begin as
    zeros, so that their pieces are known. Floats are weights.
    """
    for fake in fresh:
        storage, dtype = fake._fake_storage, fake.dtype
        is_integer = not (dtype.is_floating_point or dtype.is_complex)
        if is_integer and _values.fits(storage.num_bytes, dtype):
            storage.value = Filled(0, dtype, storage.num_bytes)


def _has_grown(fake: FakeTensor) -> bool:
    """Whether the operator made room behind a known value: nobody has written there."""
    storage = fake._fake_storage
    return storage.value is not None and storage.num_bytes > storage.num_known_bytes()


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
    if any(not _values.fits(f._fake_storage.num_bytes, f.dtype) for f in fresh):
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
    return _values.fits(num_bytes, fake.dtype) and covered == num_bytes


def _compute_values(call: Call, result: Any, fresh: list[FakeTensor]) -> bool:
    """Run on values; True if every fresh result now knows its own."""
    if _may_wait(call, result, fresh):
        _wait(call, result)
        return True
    try:
        values = run_on_values(call)
    except (NotImplementedError, RuntimeError):
        if call.device.type == "cpu":
            raise
        return False  # the host cannot do what the fake's device could
    if not fresh:
        return True  # written in place, where the values are
    pairs = (
        [(result, values)] if isinstance(result, FakeTensor) else zip(result, values, strict=True)
    )
    for fake, value in pairs:
        if any(fake is f for f in fresh):
            _adopt(fake, value)
    return True


def _may_wait(call: Call, result: Any, fresh: list[FakeTensor]) -> bool:
    """Whether the one result has a storage to itself, whose value can be left for later."""
    if not isinstance(result, FakeTensor) or not _later.can_wait(call.plan.packet, call.tensors):
        return False
    if call.kwargs.get("rounding_mode") is not None:  # divides integers, which a zero makes fail
        return False
    if len(fresh) == 1 and fresh[0] is result:
        return True
    others = [t._fake_storage for t in call.tensors[1:] if isinstance(t, FakeTensor)]
    overlaps = result._fake_storage in others  # eager refuses that, or not, by the values' places
    return result is call.args[0] and _covers_storage(result) and not overlaps


def _wait(call: Call, fake: FakeTensor) -> None:
    """Leave the value of `fake` to whoever reads it first."""
    args = [_known_argument(arg) for arg in call.args]
    kwargs = {name: _known_argument(arg) for name, arg in call.kwargs.items()}
    kwargs.pop("pin_memory", None)
    storage = fake._fake_storage
    later = _later.Later(call.func, args, kwargs, fake._fake_meta, storage.num_bytes)
    if later.depth > _later.MAX_DEPTH:
        later.bytes()
    storage.value = later


def _known_argument(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return _later.Known(value._fake_meta, value._fake_storage)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()  # real, and the caller's to write
    if isinstance(value, (list, tuple)):
        return [_known_argument(item) for item in value]
    return _device.CPU if isinstance(value, torch.device) else value


def _adopt(fake: FakeTensor, value: torch.Tensor) -> None:
    storage = fake._fake_storage
    storage.value = torch.UntypedStorage(storage.num_bytes, device="cpu")
    _memory.view_of(storage.value, fake._fake_meta).copy_(value)
