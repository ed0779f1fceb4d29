"""Fake copies of tensors and modules, made together.

Input: real, deferred or fake tensors, and modules of them. Output: fakes of the same classes that
share memory among each other as the originals do. Invariant: no original is changed or kept by a
copy; one original has one copy, one storage one storage.
"""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from torchfake._core import devices
from torchfake._core.metadata import SPARSE_LAYOUTS, intern, metadata_of
from torchfake._core.storage import Storage
from torchfake._tensor import known_values
from torchfake._tensor.classes import FAKE_TYPES, fake_class, real_memory_of
from torchfake._tensor.fake_tensor import FakeTensor, new_fake, user_attributes
from torchfake._torch import subclass
from torchfake.errors import ReplayError, UnknownValueError, UnsupportedOpError


class FakeCopies:
    """Fake copies that are made together: one for each tensor, one storage for each storage.

    Args:
        device: the device of all copies; None: that of each original.
        known: whether copies of small tensors, except parameters, keep the values.
    """

    def __init__(self, device: torch.device | None, *, known: bool = False) -> None:
        self.device = device
        self.known = known
        self.by_tensor: dict[int, Any] = {}
        self.by_storage: dict[int, Storage] = {}

    def of(self, real: torch.Tensor) -> Any:
        copied = self.by_tensor.get(id(real))
        if copied is not None:
            return copied
        if real.layout != torch.strided and not subclass.inner_tensors(real):
            raise UnsupportedOpError(f"fakes are strided; this tensor has layout {real.layout}")
        if torch.nn.parameter.is_lazy(real) and not isinstance(real, FakeTensor):
            self.by_tensor[id(real)] = lazy = self._lazy(real)
            return lazy
        is_known = self.known and not isinstance(real, torch.nn.Parameter)
        wrapper = self._wrapper(real, is_known)
        fake = self._fake(real, is_known) if wrapper is None else wrapper
        self.by_tensor[id(real)] = fake
        self._copy_state(real, fake)
        return fake

    def _fake(self, real: torch.Tensor, is_known: bool) -> FakeTensor:
        device = self.device or (devices.CPU if real.is_meta else real.device)
        if isinstance(real, FakeTensor):
            memory = real_memory_of(real._fake_storage)
            key = id(real._fake_storage) if memory is None else subclass.storage_key(memory)
            num_bytes = real._fake_storage.num_bytes
        else:
            untyped = real.untyped_storage()
            key, num_bytes = subclass.storage_key(untyped), untyped.nbytes()
        storage = self.by_storage.get(key)
        if storage is None:
            storage = self.by_storage[key] = Storage(num_bytes, device)
            if is_known:
                _store_known_value(storage, real)
        return new_fake(metadata_of(real, device), storage, fake_class(type(real)))

    def _lazy(self, real: torch.Tensor) -> FakeTensor:
        """A copy of the parameter of a lazy module, which refuses most calls until it is shaped."""
        device = self.device or (devices.CPU if real.is_meta else real.device)
        record = intern((0,), (1,), 0, real.dtype, device)
        made = fake_class(type(real)), real.requires_grad
        return new_fake(record, Storage(0, device), made[0], requires_grad=made[1])

    def _wrapper(self, real: torch.Tensor, is_known: bool) -> torch.Tensor | None:
        """A wrapper of fakes for a wrapper of tensors; None for any other tensor."""
        if isinstance(real, FakeTensor) or not subclass.inner_tensors(real):
            return None

        def exchange(inner: torch.Tensor) -> torch.Tensor:
            if id(inner) not in self.by_tensor:
                fake = self._wrapper(inner, is_known)
                self.by_tensor[id(inner)] = self._fake(inner, is_known) if fake is None else fake
            return self.by_tensor[id(inner)]  # type: ignore[no-any-return]

        return subclass.rewrapped(real, exchange)

    def _copy_state(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        own, is_plain = subclass.all_attributes(fake), type(real) in _PLAIN
        for name, value in user_attributes(real).items():
            if name not in own:
                own[name] = value if is_plain else self._state(value)
        if fake.requires_grad != real.requires_grad:
            fake.requires_grad_(real.requires_grad)
        if real.is_leaf and real.grad is not None:
            fake.grad = self.of(real.grad)

    def _state(self, value: Any) -> Any:
        """The attribute value for the copy of a tensor of a user's class: with fake copies of the
        tensors in `value`, such as the scales of a quantized parameter.
        """
        if isinstance(value, torch.Tensor):
            return self.of(value)
        if not holds_tensors(value):
            return value
        if id(value) not in self.by_tensor:
            if isinstance(value, (list, tuple)):
                return type(value)(map(self._state, value))
            if isinstance(value, dict):
                return {key: self._state(item) for key, item in value.items()}
            self.by_tensor[id(value)] = copied = copy.copy(value)
            copied.__dict__.update({k: self._state(v) for k, v in vars(value).items()})
        return self.by_tensor[id(value)]

    def of_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """A deep copy of `module` with fake copies of its tensors. Sparse ones stay real."""
        for tensor in all_tensors(module, set()):
            if tensor.layout not in SPARSE_LAYOUTS:
                self.of(tensor)
        memo: dict[int, Any] = dict(self.by_tensor)
        for child in module.modules():  # each has ten empty dicts, for hooks
            for value in vars(child).values():
                if type(value) is OrderedDict and not (value or vars(value)):
                    memo.setdefault(id(value), OrderedDict())  # not through pickle's protocol
        replace_replicas(module, memo)
        return copy.deepcopy(module, memo)


class OnOneDevice(torch.nn.Module):
    """The replacement, in a copy, for a module that replicates another: runs only that other one.

    The reducer of ``DistributedDataParallel`` is C++, and would write gradients to memory, which
    fakes do not have.
    """

    def __init__(self, module: torch.nn.Module, replicates: str) -> None:
        super().__init__()
        self.module = module
        self.replicates = replicates

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """As ``DistributedDataParallel.no_sync``: there is nothing to synchronize."""
        return contextlib.nullcontext()


def replace_replicas(module: torch.nn.Module, memo: dict[int, Any]) -> None:
    """Fill the memo of a deep copy so that the copy has :class:`OnOneDevice` in place of modules
    that replicate others on several devices.
    """
    for child in reversed(list(module.modules())):
        if id(child) not in memo and is_replicated(child):
            inner: Any = copy.deepcopy(child.module, memo)
            memo[id(child)] = made = OnOneDevice(inner, type(child).__name__)
            made.training = child.training


def is_replicated(module: torch.nn.Module) -> Any:
    """Whether a module runs its inner module on several devices, or in several processes."""
    parallel = torch.nn.parallel
    if isinstance(module, torch.nn.DataParallel):
        return bool(module.device_ids)
    return isinstance(module, parallel.DistributedDataParallel)


_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


def _store_known_value(storage: Storage, original: torch.Tensor) -> None:
    """Give the storage of a fake copy the value of its original, if that is small and known."""
    if not known_values.keeps_value(storage.num_bytes, original.dtype) or original.is_meta:
        return
    if isinstance(original, FakeTensor):
        with contextlib.suppress(UnknownValueError, ReplayError):
            value = known_values.read_value(original, "its fake copy")
            known_values.store_tensor_value(storage, value)
    elif original.device.type == "cpu":
        known_values.store_tensor_value(storage, original)


def all_tensors(obj: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in a module and in the containers that it holds, registered or not."""
    pending = [obj]  # the next one is last
    while pending:
        obj = pending.pop()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if isinstance(obj, torch.Tensor):
            yield obj
            continue
        inner = obj.__dict__ if isinstance(obj, torch.nn.Module) else obj
        if isinstance(inner, (dict, list, tuple, set)):
            pending += reversed(list(inner.values() if isinstance(inner, dict) else inner))


def holds_tensors(value: Any) -> bool:
    """Whether a container or an object, other than a module, has tensors in it at any depth."""
    return next(tensors_held_by(value, set()), None) is not None


def tensors_held_by(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in containers and attributes of objects at any depth, except in modules."""
    pending = [value]  # the next one is last
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif id(value) not in seen and not isinstance(value, (torch.nn.Module, type)):
            seen.add(id(value))
            inner: Iterable[Any]
            if isinstance(value, Mapping):
                inner = value.values()
            elif isinstance(value, (list, tuple)):
                inner = value
            else:
                inner = () if callable(value) else getattr(value, "__dict__", {}).values()
            pending += reversed(list(inner))


def held_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory of their own that a tensor consists of: itself or the tensors that it
    wraps, and the tensors in its attributes.
    """
    if type(tensor) in FAKE_TYPES:
        return [tensor]
    return subclass.leaf_tensors(tensor) + attribute_tensors(tensor)


def attribute_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors in the attributes of a parameter of a user's class, such as the scales of its
    quantized values.
    """
    if type(tensor) in _PLAIN or _is_of_torch(tensor):
        return []
    inside = {id(leaf) for leaf in subclass.leaf_tensors(tensor)}
    held = tensors_held_by(user_attributes(tensor), set())
    leaves = {id(leaf): leaf for each in held for leaf in subclass.leaf_tensors(each)}
    return [leaf for key, leaf in leaves.items() if key not in inside]


def _is_of_torch(tensor: torch.Tensor) -> bool:
    cls = getattr(type(tensor), "_fake_of", type(tensor))
    return cls.__module__.partition(".")[0] == "torch"


def is_or_holds_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a fake, or wraps a fake."""
    if isinstance(tensor, FakeTensor):
        return True
    return any(map(is_or_holds_fake, subclass.inner_tensors(tensor)))
