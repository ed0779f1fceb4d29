"""Patches for other libraries, where neither a mode nor a replaced function of torch is enough.

Some libraries compare the exact class of a tensor; some pass a tensor to an operator of their own
as a number, which C++ reads; some ask once whether a device exists, and cache the answer.

Input: the libraries that are imported. Output: libraries that treat fakes as real tensors, and
whose caches of devices are cleared. Invariant: no library is imported here; nothing changes for
tensors that are not fake.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from itertools import starmap
from typing import Any

import torch

from torchfake._core import modes
from torchfake._patches import while_fakes_live
from torchfake._patches.patch import Patch
from torchfake._patches.sources import offloading, safetensors_files
from torchfake._tensor.fake_tensor import FakeTensor

_PACKAGE = "optimum.quanto.tensor."

_COMPARE_CLASSES = (
    "qtensor",
    "activations.qbytes_ops",
    "weights.qbits",
    "weights.awq.qbits",
    "weights.marlin.int4.qbits",
    "weights.tinygemm.qbits",
)
"""Modules (optimum-quanto 0.2.7) that pack data only if ``type(data) is torch.Tensor``: a fake
would be kept unpacked, with two or four times the bytes, in silence."""


_NAMES = ("__module__", "__name__", "__qualname__", "__doc__")  # not 3.12's __type_params__


@functools.wraps(type, assigned=_NAMES, updated=())
def _class_of_original(obj: Any) -> Any:
    cls = type(obj)
    if not issubclass(cls, FakeTensor):
        return cls
    return torch.Tensor if cls is FakeTensor else getattr(cls, "_fake_of", cls)


def _show_classes_of_originals(name: str) -> Iterator[tuple[Any, str, Any]]:
    """Define ``type`` in the quanto module `name`: of a fake it returns the class in eager mode,
    otherwise what the builtin returns.
    """
    yield sys.modules[name], "type", lambda _: _class_of_original


for _module in _COMPARE_CLASSES:
    _name = _PACKAGE + _module
    while_fakes_live.replacements[_name] = functools.partial(_show_classes_of_originals, _name)


_Packet: Any = type(torch.ops.aten.add)
_NUMBERS = frozenset({"FloatType", "IntType", "NumberType", "BoolType"})
_REFUSED = "instead found type 'FakeTensor'"
"""Part of the error of C++ where an operator takes a number and is given a fake, a meta tensor."""


def _call_packet(original: Any) -> Any:
    """``torch.ops.NAMESPACE.OPERATOR(...)``: bitsandbytes passes tensors (norms) as numbers."""

    @functools.wraps(original)
    def replacement(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except RuntimeError as error:
            if modes.current() is None or _REFUSED not in str(error) or len(self.overloads()) != 1:
                raise
            refusal = error
        declared = getattr(self, self.overloads()[0])._schema.arguments
        read = _with_numbers(declared, args, kwargs)
        if read is None:
            raise refusal
        return original(self, *read[0], **read[1])

    return replacement


def _with_numbers(declared: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments, with the values of fakes that are declared numbers; None if there are none."""
    numbers = {argument.name for argument in declared if _is_number(argument.type)}
    names = [argument.name for argument in declared]
    given = [*zip(names, args, strict=False), *kwargs.items()]
    fakes = [v for n, v in given if n in numbers and isinstance(v, FakeTensor)]
    if not fakes or any(fake.requires_grad for fake in fakes):  # eager refuses these, too
        return None
    read = [v.item() if n in numbers and isinstance(v, FakeTensor) else v for n, v in given]
    return read[: len(args)], dict(zip(kwargs, read[len(args) :], strict=True))


def _is_number(declared: Any) -> bool:
    is_optional = type(declared) is torch.OptionalType
    return type(declared.getElementType() if is_optional else declared).__name__ in _NUMBERS


PATCHES = [
    Patch(_Packet, "__call__", _call_packet),
]


def patches_of_imported() -> list[Patch]:
    """The patches of functions in those libraries that are imported."""
    found = (
        list(starmap(Patch, offloading.of_imported())) if offloading.MODULE in sys.modules else []
    )
    for module, path, make_replacement in safetensors_files.OF_LIBRARIES:
        owner: Any = sys.modules.get(module)
        *classes, name = path.split(".")
        for each in classes:
            owner = getattr(owner, each, None)
        if owner is not None and hasattr(owner, name):
            found.append(Patch(owner, name, make_replacement))
    return found


_REMEMBER_DEVICES = ("accelerate.utils.imports", "transformers.utils.import_utils")

_WORDS = ("cuda", "mps", "xpu", "hpu", "mtia", "xla", "bf16", "fp16", "tf32", "gaudi", "rocm")


def forget_devices() -> None:
    """Clear the caches of library functions with a device in their names, so that libraries ask
    again which devices exist.
    """
    for name in _REMEMBER_DEVICES:
        module = sys.modules.get(name)
        for function_name, function in [] if module is None else list(vars(module).items()):
            if any(word in function_name for word in _WORDS):
                clear = getattr(function, "cache_clear", None)
                if clear is not None:
                    clear()


class RememberedDevices:
    """The types of fake devices that libraries have cached as available."""

    def __init__(self) -> None:
        self.types: set[str] = set()  # of the fake devices

    def update(self, types: set[str]) -> None:
        """Clear the caches of libraries: fake devices are of `types` from here on."""
        forget_devices()
        self.types = set(types)
