"""Replacements for functions that bring data into torch without a dispatched operation.

Enters: the originals. Leaves: versions that give fakes inside a mode. Invariant: outside a mode,
or on another thread, each is the original.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfake import _device, _generators, _private, _state, _streams, _values
from torchfake._metadata import FakeUntypedStorage, new_untyped
from torchfake._patches import Patch
from torchfake._tensor import FakeTensor, fake_class, fake_twin, new_fake


def _fake_result(original: Any) -> Any:
    """For ``torch.frombuffer`` and ``from_dlpack``: C++ wraps the memory and tells nobody."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        state = _state.current()
        if state is None or state.mark or isinstance(result, FakeTensor):
            return result  # real ones take part in what is recorded
        return fake_twin(result, known=True).requires_grad_(result.requires_grad)

    return replacement


def _load_without_data(original: Any) -> Any:
    """``torch.load``: storages arrive as sizes and devices; their bytes are not read."""

    @functools.wraps(original)
    def replacement(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        state = _state.current()
        if state is not None and state.mark and not state.loading:
            with _values.on_host():
                return original(f, map_location, *args, **kwargs)
        if state is None or state.loading or _is_meta(map_location):
            return original(f, map_location, *args, **kwargs)
        state.loading = True
        try:
            with torch.serialization.skip_data():
                return original(f, _fake_location(map_location), *args, **kwargs)
        finally:
            state.loading = False

    return replacement


def _is_meta(map_location: Any) -> bool:
    return map_location is not None and str(map_location) == "meta"


def _fake_location(map_location: Any) -> Any:
    """A ``map_location`` that gives each storage the device it would have, and no bytes."""

    def locate(storage: torch.UntypedStorage, location: str) -> FakeUntypedStorage:
        if callable(map_location):
            moved = map_location(storage, location)
            target = location if moved is None else moved.device
        elif isinstance(map_location, dict):
            target = map_location.get(location, location)
        else:
            target = location if map_location is None else map_location
        return new_untyped(storage.nbytes(), _device.resolve(target))

    return locate


def _make_subclass(original: Any) -> Any:
    """``Tensor._make_subclass``: C++ would copy the wrapper and forget what makes it a fake.

    Lazy modules make their UninitializedParameter so.
    """
    function = torch.Tensor._make_subclass

    @functools.wraps(function)
    def replacement(cls: Any, data: Any, require_grad: bool = False, **kwargs: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return function(cls, data, require_grad, **kwargs)
        fake = new_fake(data._fake_meta, data._fake_storage, fake_class(cls))
        if issubclass(cls, torch.nn.Parameter):
            fake.__dict__["_is_param"] = True
        with _private.no_subclass_functions():  # an UninitializedParameter refuses nearly all
            return fake.requires_grad_(require_grad)

    return staticmethod(replacement)


def _new_parameter(original: Any) -> Any:
    """``nn.Parameter.__new__``: of a tensor of another class it makes a tensor of that class, so
    that a subclass of Parameter would be lost.
    """
    function = torch.nn.Parameter.__new__

    @functools.wraps(function)
    def replacement(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if cls is torch.nn.Parameter or not isinstance(data, FakeTensor):
            return function(cls, data, requires_grad)
        return torch.Tensor._make_subclass(cls, data.detach(), requires_grad)

    return staticmethod(replacement)


def _lengths_as_tensors(original: Any) -> Any:
    """``torch.ctc_loss``: C++ makes a CPU tensor of a list of lengths and writes its memory itself.

    Inside a mode that tensor is fake and has none. Given tensors, it goes by the dispatcher.
    """

    @functools.wraps(original)
    def replacement(log_probs: Any, targets: Any, *lengths: Any, **options: Any) -> Any:
        if _state.current() is not None:
            lengths = tuple(_tensor_of_list(value) for value in lengths)
            options = {name: _tensor_of_list(value) for name, value in options.items()}
        return original(log_probs, targets, *lengths, **options)

    return replacement


def _tensor_of_list(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, (list, tuple)) else value


def _reseeding(original: Any) -> Any:
    """The seed and the state of the global generator: known draws begin again from there, which
    the state alone would not show where it is set to what it was.
    """

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _state.forget_draws()
        _streams.forget(torch.default_generator)
        return result

    return replacement


def _reading_state(original: Any) -> Any:
    """The state of the global generator: that which eager would have left it in."""

    @functools.wraps(original)
    def replacement() -> Any:
        _generators.settle_all()
        return original()

    return replacement


PATCHES = [
    Patch(torch, "asarray", _fake_result),
    Patch(torch, "get_rng_state", _reading_state),
    Patch(torch, "manual_seed", _reseeding),
    Patch(torch, "set_rng_state", _reseeding),
    Patch(torch.random, "get_rng_state", _reading_state),
    Patch(torch.random, "manual_seed", _reseeding),
    Patch(torch.random, "set_rng_state", _reseeding),
    Patch(torch.utils.dlpack, "from_dlpack", _fake_result),
    Patch(torch, "ctc_loss", _lengths_as_tensors),
    Patch(torch, "frombuffer", _fake_result),
    Patch(torch, "from_dlpack", _fake_result),
    Patch(torch, "load", _load_without_data),
    Patch(torch.Tensor, "_make_subclass", _make_subclass),
    Patch(torch.nn.Parameter, "__new__", _new_parameter),
]
