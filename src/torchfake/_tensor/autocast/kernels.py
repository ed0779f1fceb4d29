"""autocast for fakes: the casts that C++ autocast makes for a real tensor on the fake's device.

Input: a call of a torch function while autocast is on for some device type. Output: its result,
with the casts made. Invariant: torch's dispatcher is changed only while :func:`run_with_autocast`
runs.

C++ autocast looks at the C++ device, which is meta, so it never casts a fake. To cast at the level
of torch functions alone is not enough: autocast's lists contain operators, and most of these are
called from inside others (``torch.einsum`` on CPU calls ``bmm``, ``nn.LSTM`` calls ``linear``). So
the casts are made where torch makes them: in kernels for an autocast dispatch key, above autograd.
The key is the one that torch reserves for Graphcore's IPU, whose backend was never in torch itself
and is no longer developed. No tensor carries it; :func:`run_with_autocast` puts it into the
thread's set of included keys while one torch function runs. The kernels are registered when
autocast first meets a fake, not at import.

One case differs from eager: inside ``torch.vmap``, an operation whose arguments are all batched
bypasses the fakes' torch function and is not cast.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from torchfake._tensor.autocast.lists import OTHERS, POLICIES, UNLISTED
from torchfake._tensor.autocast.policies import (
    POLICY_NAMED,
    Args,
    Kwargs,
    Policy,
    metadata_record,
    tensors_in,
)
from torchfake._torch import dispatch_keys, subclass
from torchfake._torch.contexts import Setting, holding, shared
from torchfake._torch.distributed.dtensors import is_dtensor


def run_with_autocast(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a torch function with autocast for the devices that fakes report."""
    if getattr(func, "__name__", None) == "__get__":  # x.shape, x.grad: nothing to cast
        with subclass.no_subclass_functions():
            return func(*args, **kwargs)
    _register()
    with (
        _autocast_key_enabled(),
        dispatch_keys.AUTOCAST_KEY.included(),
        subclass.no_subclass_functions(),
    ):
        return func(*args, **kwargs)


def _autocast_key_enabled() -> Setting:
    """Context: kernels of torchfake's autocast key run on threads that include the key."""
    device_type = dispatch_keys.AUTOCAST_KEY_DEVICE_TYPE
    return Setting(
        partial(torch.is_autocast_enabled, device_type),
        partial(torch.set_autocast_enabled, device_type),
        True,
    )


# The kernels.

_registering = shared(threading.Lock())
_registered = threading.Event()
_policies: dict[Any, dict[str, Policy]] = {}
"""Of each operator with a kernel: its policy on each device type."""


def _register() -> None:
    """Register a kernel for each operator that autocast lists, at the first call."""
    if _registered.is_set():
        return
    with holding(_registering):
        if not _registered.is_set():
            for name, policies in _policies_by_operator().items():
                op = _operator(name)
                _policies[op] = policies
                dispatch_keys.AUTOCAST_KEY.register(op, _kernel(op, policies))
            _registered.set()


def _policies_by_operator() -> dict[str, dict[str, Policy]]:
    """For each operator that the installed torch autocasts: its policy on each device type."""
    found: dict[str, dict[str, Policy]] = {}
    for device_type, table in POLICIES.items():
        for name in table.keys() & dispatch_keys.autocast_operators(device_type):
            found.setdefault(name, {})[device_type] = POLICY_NAMED[table[name]]
    for name, policies in UNLISTED.items():
        for device_type, policy in policies.items():
            found.setdefault(name, {})[device_type] = POLICY_NAMED[policy]
    return found


def _operator(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel(op: Any, policies: dict[str, Policy]) -> Callable[..., Any]:
    """The kernel of `op`: applies the policies of the device types that are on, then runs `op`."""

    def kernel(redispatch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        applicable = [
            device_type
            for device_type in _device_types(args, kwargs)
            if _applies(policies, device_type)
        ]
        if not applicable:
            return redispatch(*args, **kwargs)
        target = op
        for device_type in applicable:
            call = policies[_list_of(device_type)](target, args, kwargs, device_type)
            if call is None:
                return redispatch(*args, **kwargs)
            target, args, kwargs = call
        with dispatch_keys.AUTOCAST_KEY.excluded():  # as in C++: what `op` calls is not cast
            return target(*args, **kwargs)

    return kernel


def _applies(policies: dict[str, Policy], device_type: str) -> bool:
    return _list_of(device_type) in policies and torch.is_autocast_enabled(device_type)


def comes_later(op: Any, device_type: str) -> bool:
    """Whether a kernel of this thread's autocast will call `op` again, with its arguments cast."""
    key = dispatch_keys.AUTOCAST_KEY
    return key.is_next() and _applies(_policies.get(op, {}), device_type)


def _list_of(device_type: str) -> str:
    """The device type whose list of operators holds for `device_type`."""
    return device_type if device_type in POLICIES else OTHERS


def _device_types(args: Args, kwargs: Kwargs) -> list[str]:
    """The device types that fakes and DTensors of fakes among the arguments report, each once."""
    found = []
    for tensor in tensors_in(args, kwargs):
        record = metadata_record(tensor)
        if record is not None:
            found.append(record.device.type)
        elif is_dtensor(tensor):
            found.append(tensor.device.type)
    return list(dict.fromkeys(found))
