"""Functions that bring data into torch without a dispatched operation, replaced.

Input: the originals. Output: versions that give fakes inside a mode. Invariant: outside a mode, or
on another thread, each is the original.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from torchfake._core import devices, modes
from torchfake._patches.patch import Patch, replacing, replacing_in_modes
from torchfake._recording import sparse_tensors
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy, is_deferred_fake, new_fake
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._torch import backends, dispatcher, subclass


@replacing
def _with_fake_result(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.frombuffer``, ``from_dlpack``, ``asarray``: C++ wraps memory without a dispatch."""
    if args and isinstance(args[0], FakeUntypedStorage):
        return _as_tensor(*args, **kwargs)
    result = original(*args, **kwargs)
    state = modes.current()
    if isinstance(result, FakeTensor) or result.is_meta:
        return result
    if state is None or state.mark:
        return result  # a deferred mode records real tensors as they are
    return subclass.require_grad(fake_copy(result, known=True), result.requires_grad)


@replacing
def _from_dlpack(original: Any, /, ext_tensor: Any, **options: Any) -> Any:
    """``torch.from_dlpack`` of a fake that is not deferred: a fake of the same memory. C++ would
    ask the driver for the stream, and would copy the values of a fake on the CPU.
    """
    is_shared = isinstance(ext_tensor, FakeTensor) and not is_deferred_fake(ext_tensor)
    if not is_shared or ext_tensor.device.type == "meta":
        return _with_fake_result(original)(ext_tensor, **options)
    known_values.check_export(ext_tensor)
    shared = new_fake(ext_tensor._fake_meta, ext_tensor._fake_storage)
    device, copy = options.get("device"), options.get("copy")
    if device is None and not copy:
        return shared
    return shared.to(shared.device if device is None else device, copy=bool(copy))


@replacing
def _on_reported_device(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.tensor(data, device=x.device)`` inside a transform of ``torch.func``, where `x`
    reports its carrier, a meta device: C++ would drop the data.
    """
    device = kwargs.get("device")
    if any(isinstance(given, FakeTensor) for given in (*args[:1], kwargs.get("obj"))):
        return original(*args, **kwargs)
    if device is not None and modes.current() is not None and not isinstance(device, int):
        kwargs["device"] = devices.decode(torch.device(device))
    return original(*args, **kwargs)


def _as_tensor(
    storage: FakeUntypedStorage,
    *,
    dtype: torch.dtype = torch.uint8,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """``torch.asarray`` of a storage: C++ would read its bytes one by one."""
    target = storage.device if device is None else device
    tensor = storage.as_tensor().to(target, dtype, copy=bool(copy))
    return subclass.require_grad(tensor, requires_grad)


@replacing
def _with_real_items(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.tensor([fake, fake])``: C++ reads each item without a dispatch."""
    if modes.current() is not None:
        if args and isinstance(args[0], (list, tuple)):
            args = (known_values.with_real_items(args[0]), *args[1:])
        for name in ("data", "obj"):
            if name in kwargs and not isinstance(kwargs[name], torch.Tensor):
                kwargs[name] = known_values.with_real_items(kwargs[name])
        _name_device_of_context(kwargs)
        if kwargs.get("pin_memory"):
            return _pinned(original, args, kwargs)
    return original(*args, **kwargs)


def _name_device_of_context(kwargs: dict[str, Any]) -> None:
    """Name the device of ``with torch.device("cuda")``: C++ would ask the driver for its index, to
    copy a tensor or the memory of an array to it.
    """
    device = backends.context_device() if kwargs.get("device") is None else None
    if device is not None and device.type not in ("cpu", "meta"):
        kwargs["device"] = devices.resolve(device)


@replacing_in_modes
def _aliasing(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.asarray`` of a fake: C++ compares the device with the carrier of the fake."""
    source = args[0] if args else kwargs.get("obj")
    if not isinstance(source, FakeTensor) or kwargs.get("device") is None:
        return original(*args, **kwargs)
    own, target = source.device, devices.resolve(kwargs["device"])
    if own != target and kwargs.get("copy") is False:
        raise ValueError(f"can't alias tensor from device '{own}' to '{target}'.")
    return original(*args, **{**kwargs, "device": devices.encode(target)})


def _pinned(original: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """``torch.tensor(numbers, pin_memory=True)``: C++ asks the driver for memory."""
    if isinstance(args[0] if args else kwargs.get("data"), (torch.Tensor, np.ndarray)):
        return original(*args, **kwargs)  # refuses it
    made = original(*args, **{**kwargs, "pin_memory": False, "requires_grad": False})
    if made.device.type != "cpu":
        raise RuntimeError("Only dense CPU tensors can be pinned")  # as eager does
    pinned: torch.Tensor = made.pin_memory()
    return subclass.require_grad(pinned, kwargs.get("requires_grad", False))


@replacing_in_modes
def _sharing_memory(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.as_tensor`` of an array that is not dense: C++ would copy the fake that it has made,
    whose carrier is on meta, and so lose the strides.
    """
    made = original(*args, **kwargs)
    data = args[0] if args else kwargs["data"]
    if not isinstance(data, np.ndarray) or data.flags.forc or made.device.type != "cpu":
        return made
    shared = torch.from_numpy(data)
    return shared if shared.dtype is made.dtype else made


@replacing
def _to_dlpack(original: Any, tensor: Any) -> Any:
    """``torch.utils.dlpack.to_dlpack``: C++ reads the address of the tensor's memory."""
    if not isinstance(tensor, FakeTensor):
        return original(tensor)
    with known_values.without_fake_mode():
        return original(known_values.memory_of(tensor, "to_dlpack()"))


def _storage_from_buffer(original: Any) -> Any:
    """``torch.UntypedStorage.from_buffer``: C++ reads nothing while a mode is in the FAKE slot."""
    function = torch.UntypedStorage.from_buffer

    @functools.wraps(function)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if modes.current() is None:
            return function(*args, **kwargs)
        with known_values.without_fake_mode():
            return function(*args, **kwargs)

    return staticmethod(replacement)


@replacing
def _lengths_as_tensors(
    original: Any, /, log_probs: Any, targets: Any, *lengths: Any, **options: Any
) -> Any:
    """``torch.ctc_loss``: C++ makes a CPU tensor from a list of lengths and writes its memory.

    Inside a mode that tensor is fake and has no memory. Tensors of lengths are dispatched.
    """
    if modes.current() is not None:
        lengths = tuple(_list_to_tensor(value) for value in lengths)
        options = {name: _list_to_tensor(value) for name, value in options.items()}
    return original(log_probs, targets, *lengths, **options)


def _list_to_tensor(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, (list, tuple)) else value


@replacing
def _sobol_draw(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``torch._sobol_engine_draw`` of an engine made outside of modes: C++ writes the memory of the
    results, which are fake in a mode.
    """
    state = modes.current()
    if state is None or any(isinstance(arg, FakeTensor) for arg in args):
        return original(*args, **kwargs)
    with dispatcher.as_eager():
        drawn, quasi = original(*args, **kwargs)
    return drawn.clone() if state.mark else fake_copy(drawn, known=True), quasi


@replacing_in_modes
def _sparse_from_values(original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.sparse_coo_tensor`` and its siblings: C++ reads indices to infer a size, and drops
    lists of them where values report a meta device.
    """
    return sparse_tensors.make_sparse(original, args, kwargs)


_MAKERS_OF_SPARSE = ("coo", "csr", "csc", "bsr", "bsc", "compressed")

backends.device_constructors()  # before any of them is replaced: torch caches the set

_PATCHES_FOR_DROPPED_DATA = [
    Patch(torch, name, _on_reported_device) for name in ("tensor", "as_tensor", "asarray")
]

PATCHES = [
    *(_PATCHES_FOR_DROPPED_DATA if backends.drops_data_on_meta() else []),
    Patch(
        torch,
        "asarray",
        lambda original: _with_real_items(_with_fake_result(_aliasing(original))),
    ),
    Patch(torch, "tensor", _with_real_items),
    Patch(torch, "as_tensor", lambda original: _with_real_items(_sharing_memory(original))),
    Patch(torch.utils.dlpack, "from_dlpack", _from_dlpack),
    Patch(torch.utils.dlpack, "to_dlpack", _to_dlpack),
    Patch(torch, "ctc_loss", _lengths_as_tensors),
    Patch(torch, "_sobol_engine_draw", _sobol_draw),
    *(Patch(torch, f"sparse_{kind}_tensor", _sparse_from_values) for kind in _MAKERS_OF_SPARSE),
    Patch(torch, "frombuffer", _with_fake_result),
    Patch(torch, "from_dlpack", _from_dlpack),
    Patch(torch, "to_dlpack", _to_dlpack),
    Patch(torch.UntypedStorage, "from_buffer", _storage_from_buffer),
]
