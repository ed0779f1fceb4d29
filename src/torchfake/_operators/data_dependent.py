"""Operators whose result, or its shape, depends on values: run on the values of their arguments.

Input: a :class:`Call` whose values must be known. Output: its results, of known value. Invariant:
an ``out=`` is written where it lies, and resized as eager resizes it.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import memory, source_location
from torchfake._core.metadata import bytes_spanned, intern
from torchfake._operators.constant_propagation import (
    argument_value,
    covers_storage,
    has_grown,
    is_known,
    run_on_values,
    set_value,
)
from torchfake._operators.operator_call import Call, mutated_tensors
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy, rebind
from torchfake._unknown_values import answerers
from torchfake.errors import UnsupportedOpError


def run_on_known_values(call: Call) -> Any:
    """Run an operator whose result, or the shape of the result, depends on values."""
    outs = mutated_tensors(call)
    for tensor in call.tensors:
        if not is_known(tensor) and not any(tensor is out for out in outs):
            if isinstance(tensor, FakeTensor):
                if (truth := _answered_truth(call, tensor)) is not None:
                    return truth
                raise known_values.unknown_value_error(tensor, call.traits.name)
            raise UnsupportedOpError(f"{call.traits.name} reads a large real tensor in a fake mode")
    if not outs:
        return _wrap_values(call, run_on_values(call))
    return _write_outputs(call)


def _answered_truth(call: Call, unknown: FakeTensor) -> bool | None:
    """The answer of a comparison such as ``torch.equal``; None if no answerer has one."""
    returns = call.func._schema.returns
    if len(returns) != 1 or str(returns[0].type) != "bool":
        return None
    return answerers.truth_of(unknown, call.traits.name)


def _write_outputs(call: Call) -> Any:
    """Run the operator with ``out=`` on memory that lies as the outputs do, and write what it
    leaves there into the storages of the outputs, which may be views.
    """
    outputs = {a.name: call.kwargs[a.name] for a in call.func._schema.arguments if a.is_out}
    made = {
        name: torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device="cpu")
        for name, out in outputs.items()
    }
    rest = {n: argument_value(arg) for n, arg in call.kwargs.items() if n not in outputs}
    call.func(*map(argument_value, call.args), **rest, **made)
    for name, out in outputs.items():
        take_size(out, made[name])
        _overwrite(out, made[name])
    return tuple(outputs.values()) if len(outputs) > 1 else outputs.popitem()[1]


def _overwrite(fake: FakeTensor, value: torch.Tensor) -> None:
    """Write `value` to all elements of a fake, whose storage may have others."""
    storage = fake._fake_storage
    if covers_storage(fake):
        set_value(fake, value)
    elif storage.is_known and not has_grown(fake):
        memory.view_of(storage.writable_bytes(), fake._fake_meta).copy_(value)
    else:
        storage.value = None


def _wrap_values(call: Call, result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        fake = fake_copy(result, device=call.device, known=True)
        fake._fake_storage.set_origin(call.func, source_location.caller_location(2))
        return fake
    if isinstance(result, (list, tuple)):
        return type(result)(_wrap_values(call, item) for item in result)
    return result


def take_size(fake: FakeTensor, resized: torch.Tensor) -> None:
    """Give `fake` the size and strides of `resized`, a tensor that has stood for it as ``out=``."""
    if fake._fake_meta.size != resized.shape:
        take_place(fake, resized)


def take_place(fake: FakeTensor, resized: torch.Tensor) -> None:
    """Give `fake` the size and strides of `resized`, and a storage that is large enough."""
    old, storage = fake._fake_meta, fake._fake_storage
    place = tuple(resized.shape), resized.stride(), old.offset, old.dtype
    num_bytes = bytes_spanned(*place[:3], old.dtype.itemsize)
    if num_bytes > storage.num_bytes:
        storage.meta.resize_(num_bytes)
    rebind(fake, intern(*place, old.device), storage)
