"""Pickles of fakes, and the names by which they refer to the functions that rebuild fakes.

Input: a fake, or its state from a pickle. Output: the state of the fake, or the fake from its
state, by functions that are allowed for ``torch.load(weights_only=True)``. Invariant: the names in
a pickle are a file format: they stay when a function moves, so that pickles of one release load in
another.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core.metadata import Ints, intern
from torchfake._core.pickle_names import publish
from torchfake._core.storage import Storage, load_storage
from torchfake._tensor import known_values
from torchfake._tensor.classes import FakeParameter, fake_class
from torchfake._tensor.fake_tensor import FakeTensor, new_fake, user_attributes
from torchfake._tensor.storages import load_typed, load_untyped
from torchfake._torch import dispatcher, subclass


def reduce_fake(fake: FakeTensor, protocol: Any) -> Any:
    """``__reduce_ex__`` of fakes: metadata, and no value. A deferred tensor is pickled as the real
    tensor that it stands for, whose memory is computed and kept.
    """
    if fake._fake_storage.deferred is not None:
        return _real_of(fake).__reduce_ex__(protocol)
    meta = fake._fake_meta
    geometry = (meta.size, meta.stride, meta.offset, meta.dtype, str(meta.device))
    attributes = user_attributes(fake)
    is_parameter = type(fake) is FakeParameter  # saved as an attribute, not by its class
    if is_parameter:
        attributes["_is_param"] = True
    stands_for = None if is_parameter else getattr(type(fake), "_fake_of", None)
    state = (*geometry, meta.conj, meta.neg, fake.requires_grad, attributes)
    return load_fake, (fake._fake_storage, *state, stands_for)


def _real_of(fake: FakeTensor) -> torch.Tensor:
    """The real tensor that a deferred fake stands for; those that share memory share it still."""
    value = known_values.memory_of(fake, "pickle")
    with subclass.no_subclass_functions():  # a lazy parameter's own function raises
        cls, requires_grad = getattr(type(fake), "_fake_of", torch.Tensor), fake.requires_grad
    with dispatcher.as_eager():
        real = subclass.make_subclass(cls, value, requires_grad)
    subclass.all_attributes(real).update(user_attributes(fake))
    return real


def load_fake(
    storage: Storage,
    size: Ints,
    stride: Ints,
    offset: int,
    dtype: torch.dtype,
    device: str,
    conj: bool,
    neg: bool,
    requires_grad: bool,
    attributes: dict[str, Any],
    stands_for: type | None = None,
) -> torch.Tensor:
    """Rebuild a fake from a pickle, on the device of its storage: ``torch.load`` may move that."""
    if storage.device.type == "meta":  # ``map_location="meta"``: torch's own
        made = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        if stands_for is None and not attributes.get("_is_param", False):
            return subclass.require_grad(made, requires_grad)
        return subclass.make_subclass(stands_for or torch.nn.Parameter, made, requires_grad)
    meta = intern(tuple(size), tuple(stride), offset, dtype, storage.device, conj=conj, neg=neg)
    is_parameter = stands_for is None and attributes.get("_is_param", False)
    cls = FakeParameter if is_parameter else fake_class(stands_for or torch.Tensor)
    fake = new_fake(meta, storage, cls)
    with subclass.no_subclass_functions():  # a lazy parameter's own function raises
        subclass.require_grad(fake, requires_grad)
    is_parameter = issubclass(cls, torch.nn.Parameter)
    own = {k: v for k, v in attributes.items() if k != "_is_param" or not is_parameter}
    subclass.all_attributes(fake).update(own)
    return fake


FakeTensor.__reduce_ex__ = reduce_fake  # type: ignore[method-assign, assignment]

for function, module in (
    (load_fake, "torchfake._tensor"),
    (load_storage, "torchfake._metadata"),
    (load_typed, "torchfake._tensor"),
    (load_untyped, "torchfake._tensor"),
):
    publish(function, module)
    function.__module__ = module  # new pickles have the same name
torch.serialization.add_safe_globals([load_fake, load_storage, load_typed, load_untyped])
