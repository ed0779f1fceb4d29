"""Copies of real tensors and generators by the ``copy`` module, inside a mode.

Input: the originals of functions that ``copy`` calls. Output: versions whose deep copies of real
tensors are fakes, with a copy of the memory of each storage, and whose shallow copies are real
views. Invariant: tensors that share memory do so in one deep copy, as in eager mode.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import sys
from typing import Any

import torch

from torchfake._core import modes
from torchfake._core.memory import flat_view
from torchfake._core.metadata import intern, metadata_of
from torchfake._core.modes import ModeState
from torchfake._core.storage import Storage
from torchfake._patches.patch import Patch, replacing
from torchfake._random import mt19937
from torchfake._tensor.classes import fake_class, storage_on
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy, new_fake, rebind
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._torch import autograd, dispatcher, subclass


@replacing
def _deep_copy(original: Any, tensor: Any, memo: dict[Any, Any]) -> Any:
    """``Tensor.__deepcopy__``, which makes an empty tensor and has it view a copied storage."""
    state = modes.current()
    if state is None or not tensor.is_leaf or not _has_plain_memory(tensor):
        return original(tensor, memo)
    if mt19937.is_state(tensor):  # a generator reads its memory
        with dispatcher.as_eager():
            return original(tensor, memo)
    if id(tensor) not in memo:
        memo[id(tensor)] = _copy_with_state(tensor, memo, state)
    return memo[id(tensor)]


def _has_plain_memory(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor).__torch_dispatch__ is subclass.disabled_torch_dispatch
    is_strided = tensor.layout == torch.strided and not tensor.is_quantized
    return is_plain and is_strided and not tensor.is_meta


def _copy_with_state(tensor: torch.Tensor, memo: dict[Any, Any], state: ModeState) -> FakeTensor:
    storage = _copied_storage(tensor, memo.setdefault("torch", {}), state)
    record = metadata_of(tensor, tensor.device)
    copied: Any = new_fake(record, storage, fake_class(type(tensor)))
    with subclass.no_subclass_functions():
        if record.conj or record.neg:
            copied = copied.resolve_conj().resolve_neg()
        elif not isinstance(tensor, torch.nn.Parameter):
            autograd.count_writes(copied, 1)  # torch puts the copied storage into an empty tensor
        subclass.require_grad(copied, tensor.requires_grad)
    if tensor.grad is not None:
        copied.grad = copy.deepcopy(tensor.grad, memo)
    for name, value in tensor.__dict__.items():
        copied.__dict__[name] = copy.deepcopy(value, memo)
    return copied  # type: ignore[no-any-return]


def _copied_storage(tensor: torch.Tensor, copies: dict[int, Any], state: ModeState) -> Storage:
    """The storage of the copy. In `copies`, torch's table, fakes with the same memory have theirs
    (:func:`~torchfake._tensor.classes.copied_storage`).
    """
    key = subclass.storage_key(tensor.untyped_storage())
    held = copies.get(key)
    if isinstance(held, FakeUntypedStorage):
        return held._fake_storage
    if not state.mark:
        storage = fake_copy(tensor, known=True)._fake_storage
    elif held is not None:  # of a storage object
        storage = storage_on(held, tensor.device, state.mark)
    else:
        with dispatcher.as_eager():
            all_bytes = flat_view(tensor.untyped_storage(), torch.uint8)
        storage = all_bytes.clone()._fake_storage  # type: ignore[attr-defined]
    copies[key] = storage.untyped
    return storage


def _reduce(original: Any) -> Any:
    """``Tensor.__reduce_ex__``: ``copy.copy`` is given a function that views the real memory."""

    @functools.wraps(original)
    def replacement(tensor: Any, protocol: Any) -> Any:
        if modes.current() is None or sys._getframe(1).f_code is not copy.copy.__code__:
            return original(tensor, protocol)
        with dispatcher.as_eager():
            return _rebuild_in_eager, original(tensor, protocol)

    return replacement


def _rebuild_in_eager(function: Any, args: tuple[Any, ...]) -> Any:
    with dispatcher.as_eager():
        return function(*args)


@replacing
def _set_metadata(original: Any, tensor: Any, metadata: dict[str, Any]) -> None:
    """``torch._utils.set_tensor_metadata``: the conjugate and negative bits of a rebuilt
    tensor, which C++ would set in its own record of the fake only.
    """
    if not isinstance(tensor, FakeTensor):
        original(tensor, metadata)
        return
    old = tensor._fake_meta
    place = (old.size, old.stride, old.offset, old.dtype, old.device, old.layout)
    rebind(tensor, intern(*place, **metadata), tensor._fake_storage)


_GENERATOR = torch.Generator
"""The class itself: on a fake machine, ``torch.Generator`` is a stand-in."""


def _reduce_generator(original: Any) -> Any:
    """The reduction by which a generator is copied: C++ reads the tensor of its state."""

    def replacement(generator: torch.Generator) -> Any:
        is_deep = sys._getframe(1).f_code is copy.deepcopy.__code__
        if modes.current() is None or not is_deep:
            if original is not None:
                return original(generator)
            return _GENERATOR, *generator.__reduce__()[1:]
        is_global = generator is torch.default_generator
        state = torch.get_rng_state() if is_global else generator.get_state()
        with dispatcher.as_eager():
            return _rebuild_generator, (generator.device, state.numpy().tobytes())

    return replacement


def _rebuild_generator(device: torch.device, state: bytes) -> torch.Generator:
    with dispatcher.as_eager():
        generator = torch.Generator(device)
        return generator.set_state(torch.tensor(list(state), dtype=torch.uint8))


PATCHES = [
    Patch(torch.Tensor, "__deepcopy__", _deep_copy),
    Patch(torch.Tensor, "__reduce_ex__", _reduce),
    Patch(torch._utils, "set_tensor_metadata", _set_metadata),
    Patch(copyreg.dispatch_table, _GENERATOR, _reduce_generator),
]
