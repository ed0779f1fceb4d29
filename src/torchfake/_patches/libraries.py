"""What other libraries ask that neither a mode nor a replaced function of torch can answer.

Some compare the exact class of a tensor; some hand one to an operator of their own as a number,
which C++ reads; some ask once whether there is a device, and remember the answer for the whole
process.

Input: the libraries that are imported. Output: answers about fakes as about real tensors, and
caches that are emptied. Invariant: no library is imported here; for what is not fake, each gives
what it gave.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from torchfake._core import modes
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


def _make_wrapper_subclass(original: Any) -> Any:
    """Each such class is made of data that the module then looks at."""
    function = getattr(original, "__func__", original)

    @functools.wraps(function)
    def replacement(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.startswith(_PACKAGE) and modes.current() is not None:
            _show_classes_of_originals()
        return function(cls, *args, **kwargs)

    return staticmethod(replacement)


def _show_classes_of_originals() -> None:
    """Give the imported modules a ``type`` that tells the class eager would have, once and for all:
    fakes outlive the mode. For anything but a fake it is the builtin.
    """
    for name in _COMPARE_CLASSES:
        module = sys.modules.get(_PACKAGE + name)
        if module is not None:
            vars(module).setdefault("type", _class_of_original)


_NAMES = ("__module__", "__name__", "__qualname__", "__doc__")  # 3.12 would copy a descriptor too


@functools.wraps(type, assigned=_NAMES, updated=())
def _class_of_original(obj: Any) -> Any:
    cls = type(obj)
    if not issubclass(cls, FakeTensor):
        return cls
    return torch.Tensor if cls is FakeTensor else getattr(cls, "_fake_of", cls)


_Packet: Any = type(torch.ops.aten.add)
_NUMBERS = frozenset({"FloatType", "IntType", "NumberType", "BoolType"})
_REFUSED = "instead found type 'FakeTensor'"
"""How C++ says that a tensor is to be read as a number and, as if it were on meta, cannot be."""


def _call_packet(original: Any) -> Any:
    """``torch.ops.NAMESPACE.OPERATOR(...)``, as bitsandbytes calls LAMB and LARS with norms."""

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
    """The arguments with the values of fakes that are declared numbers; None if there are none."""
    numbers = {argument.name for argument in declared if _is_number(argument.type)}
    names = [argument.name for argument in declared]
    given = [*zip(names, args, strict=False), *kwargs.items()]
    fakes = [v for n, v in given if n in numbers and isinstance(v, FakeTensor)]
    if not fakes or any(fake.requires_grad for fake in fakes):  # which eager refuses, too
        return None
    read = [v.item() if n in numbers and isinstance(v, FakeTensor) else v for n, v in given]
    return read[: len(args)], dict(zip(kwargs, read[len(args) :], strict=True))


def _is_number(declared: Any) -> bool:
    is_optional = type(declared) is torch.OptionalType
    return type(declared.getElementType() if is_optional else declared).__name__ in _NUMBERS


PATCHES = [
    Patch(torch.Tensor, "_make_wrapper_subclass", _make_wrapper_subclass),
    Patch(_Packet, "__call__", _call_packet),
]


def patches_of_imported() -> list[Patch]:
    """The patches of functions that libraries have, of those that are imported."""
    found = []
    for module, path, make_replacement in (
        *offloading.OF_LIBRARIES,
        *safetensors_files.OF_LIBRARIES,
    ):
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
    """Have libraries ask again which devices there are: of functions named by devices, drop what
    they remember.
    """
    for name in _REMEMBER_DEVICES:
        module = sys.modules.get(name)
        for function_name, function in [] if module is None else list(vars(module).items()):
            if any(word in function_name for word in _WORDS):
                clear = getattr(function, "cache_clear", None)
                if clear is not None:
                    clear()


class RememberedDevices:
    """What libraries remember, for the fake devices that are there."""

    def __init__(self) -> None:
        self.types: set[str] = set()  # of the fake devices

    def update(self, types: set[str]) -> None:
        """Called when `types` of fake devices have come or go."""
        forget_devices()
        self.types = set(types)
