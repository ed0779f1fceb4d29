"""The public face of fake tensors: ``fake_mode``, ``is_fake``, ``meta_like``, ``fake_like``.

Enters: the user. Leaves: modes entered and left, fakes made and described. Invariant: however a
mode is left, torch is as it was when the mode was entered.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import torch

from torchfake import _cuda, _device, _dispatch, _function, _patches, _private, _state, _values
from torchfake._cuda import CudaProfile
from torchfake._interpret import meta_twin
from torchfake._metadata import PLAIN, Storage, metadata_of
from torchfake._state import FakeCuda, ModeState
from torchfake._tensor import FakeTensor, fake_class, new_fake
from torchfake.errors import (
    DeviceError,
    NotFakeError,
    ReplayError,
    UnknownValueError,
    UnsupportedOpError,
)

_F = TypeVar("_F", bound=Callable[..., Any])


class fake_mode:
    """A context in which every tensor that is made is fake: it has metadata and no data.

    Works as a context manager and as a decorator, can be entered again inside itself, and holds
    for this thread alone. Fakes live on after it.

    Args:
        fake_cuda: ``False``: CUDA is what this machine has. ``True``: one CUDA device that is not
            there; an int: so many; a name from :func:`torchfake.profiles`, such as
            ``"h100-80gb"``, or a :class:`CudaProfile`: one device of that kind, which
            ``torch.cuda`` then describes.

    Raises:
        DeviceError: if `fake_cuda` is no profile's name or no possible number of devices.

    >>> with fake_mode(fake_cuda=True):
    ...     weight = torch.empty(4096, 4096, device="cuda")
    >>> weight
    tensor(..., device='cuda:0', size=(4096, 4096), fake=True)
    """

    _mark = PLAIN

    def __init__(self, *, fake_cuda: bool | int | str | CudaProfile | FakeCuda = False) -> None:
        self._fake_cuda = fake_cuda
        _machine(fake_cuda)  # refuse what is wrong here, not at the door

    def __enter__(self) -> fake_mode:
        state = ModeState(cuda=_machine(self._fake_cuda), mark=self._mark)
        dispatch = _dispatch.DeferredDispatch() if self._mark else _dispatch.FakeDispatch()
        with contextlib.ExitStack() as undo:  # what was done is undone if the rest fails
            has_cuda = state.cuda is not None
            _patches.enter(fake_cuda=has_cuda)
            undo.callback(_patches.leave, fake_cuda=has_cuda)
            undo.callback(_private.swap_only_lift_cpu, _private.swap_only_lift_cpu(True))
            undo.callback(_private.swap_fake_mode, _private.swap_fake_mode(dispatch))
            _state.forget_draws()
            state.undo = undo.pop_all()
            _state.push(state)
        _function.autocast_changed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _state.pop().undo.close()
        _function.autocast_changed()

    def __call__(self, function: _F) -> _F:
        if inspect.isgeneratorfunction(function):
            raise TypeError(
                f"{type(self).__name__} cannot decorate the generator function "
                f"{function.__name__}: its body runs after the call has "
                "returned. Enter the mode inside it"
            )

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with type(self)(fake_cuda=self._fake_cuda):
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]


def _machine(fake_cuda: bool | int | str | CudaProfile | FakeCuda) -> FakeCuda | None:
    if isinstance(fake_cuda, FakeCuda):  # ours: several of a kind
        return replace(fake_cuda)
    if isinstance(fake_cuda, (str, CudaProfile)):
        return FakeCuda(profile=_cuda.profile(fake_cuda), num_devices=1)
    if not isinstance(fake_cuda, int):
        raise TypeError(
            "fake_cuda is True or False, a number of devices, or a profile or its name, not "
            f"{fake_cuda!r}"
        )
    num_devices = int(fake_cuda)
    if not 0 <= num_devices <= _device.MAX_CUDA_DEVICES:
        raise DeviceError(
            f"fake_cuda={fake_cuda!r}: a mode has 0 to {_device.MAX_CUDA_DEVICES} CUDA devices"
        )
    return FakeCuda(_cuda.profile(_cuda.DEFAULT_PROFILE), num_devices) if num_devices else None


def is_fake(obj: torch.Tensor | torch.nn.Module) -> bool:
    """Whether a tensor is fake, or any parameter or buffer of a module is.

    Args:
        obj: a tensor, parameter or buffer of any shape, or a module.

    Raises:
        TypeError: for anything else.

    >>> is_fake(torch.ones(3))
    False
    """
    if isinstance(obj, torch.Tensor):
        return isinstance(obj, FakeTensor)
    if isinstance(obj, torch.nn.Module):
        return any(isinstance(t, FakeTensor) for t in tensors_of(obj))
    raise TypeError(f"is_fake takes a tensor or a module, not {type(obj).__name__}")


def tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Its parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def meta_like(fake: torch.Tensor) -> torch.Tensor:
    """A plain meta tensor with the shape, strides, storage offset and dtype of `fake`.

    It is not in the autograd graph, and no parameter.

    Args:
        fake: a fake tensor of any shape.

    Raises:
        NotFakeError: (a ValueError) if `fake` is not fake.

    >>> with fake_mode():
    ...     weight = torch.empty(3, 4).t()
    >>> meta_like(weight).stride(), meta_like(weight).device
    ((1, 4), device(type='meta'))
    """
    if not isinstance(fake, FakeTensor):
        raise NotFakeError(f"meta_like takes a fake tensor, not {_kind(fake)}; see is_fake()")
    previous = _private.swap_fake_mode(None)
    try:
        return meta_twin(fake)
    finally:
        _private.swap_fake_mode(previous)


def _kind(obj: Any) -> str:
    if isinstance(obj, torch.Tensor):
        return f"a real tensor on {obj.device}"
    return f"a {type(obj).__name__}"


_T = TypeVar("_T", torch.Tensor, torch.nn.Module)


def fake_like(real: _T, *, device: torch.device | str | int | None = None) -> _T:
    """The fake twin of a real tensor or module, its values unknown.

    A module's twin has twins of all its tensors; those that share memory or are one object in the
    module do and are in the twin. Attributes of parameters, hooks and ``training`` are kept.

    Args:
        real: a tensor of any shape, or a module.
        device: where the twin is to be; where `real` is, if not given. No such device is needed.

    Raises:
        TypeError: if `real` is neither a tensor nor a module.
        DeviceError: if fakes cannot be on `device`.

    >>> fake_like(torch.nn.Linear(2, 3), device="cuda:1").bias.device
    device(type='cuda', index=1)
    """
    target = None if device is None else any_device(device)
    if isinstance(real, torch.Tensor):
        return Twins(target).of(real)
    if isinstance(real, torch.nn.Module):
        return Twins(target).of_module(real)
    raise TypeError(f"fake_like takes a tensor or a module, not {type(real).__name__}")


def any_device(device: torch.device | str | int) -> torch.device:
    """The device named, whatever this machine or mode has."""
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return _device.decode(_device.carrier(named))


class Twins:
    """Twins made together: one per tensor, one storage per storage.

    Args:
        device: where they are to be; where each original is, if not given.
        known: small tensors keep their values, but for parameters.
    """

    def __init__(self, device: torch.device | None, *, known: bool = False) -> None:
        self.device = device
        self.known = known
        self.by_tensor: dict[int, Any] = {}
        self.by_storage: dict[int, Storage] = {}

    def of(self, real: torch.Tensor) -> FakeTensor:
        known = self.by_tensor.get(id(real))
        if known is not None:
            return known  # type: ignore[no-any-return]
        if real.layout != torch.strided:
            raise UnsupportedOpError(f"a fake is strided; this tensor has layout {real.layout}")
        device = self.device or (_device.CPU if real.is_meta else real.device)
        untyped = real.untyped_storage()
        key = _private.storage_key(untyped)
        storage = self.by_storage.get(key)
        if storage is None:
            storage = self.by_storage[key] = Storage(untyped.nbytes(), device)
            if self.known and not isinstance(real, torch.nn.Parameter):
                _remember(storage, real)
        twin = new_fake(metadata_of(real, device), storage, fake_class(type(real)))
        self.by_tensor[id(real)] = twin
        self._copy_state(real, twin)
        return twin

    def _copy_state(self, real: torch.Tensor, twin: FakeTensor) -> None:
        if isinstance(real, torch.nn.Parameter):
            twin.__dict__["_is_param"] = True
        own = twin.__dict__
        own.update({k: v for k, v in real.__dict__.items() if k not in own})
        twin.requires_grad_(real.requires_grad)
        if real.is_leaf and real.grad is not None:
            twin.grad = self.of(real.grad)

    def of_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """A deep copy of `module` that finds twins where it would copy data."""
        for tensor in all_tensors(module, set()):
            self.of(tensor)
        return copy.deepcopy(module, dict(self.by_tensor))


def _remember(storage: Storage, original: torch.Tensor) -> None:
    """Let the storage of a twin know the value of its original, where that is small and known."""
    if not _values.fits(storage.num_bytes, original.dtype) or original.is_meta:
        return
    if isinstance(original, FakeTensor):
        with contextlib.suppress(UnknownValueError, ReplayError):
            _values.remember_tensor(storage, _values.read(original, "its twin"))
    elif original.device.type == "cpu":
        _values.remember_tensor(storage, original)


def all_tensors(obj: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Tensors in a module and in the containers it holds, registered or not."""
    if id(obj) in seen:
        return
    seen.add(id(obj))
    if isinstance(obj, torch.Tensor):
        yield obj
    elif isinstance(obj, torch.nn.Module):
        for value in obj.__dict__.values():
            yield from all_tensors(value, seen)
    elif isinstance(obj, dict):
        for value in obj.values():
            yield from all_tensors(value, seen)
    elif isinstance(obj, (list, tuple, set)):
        for value in obj:
            yield from all_tensors(value, seen)
