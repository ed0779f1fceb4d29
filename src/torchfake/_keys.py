"""What the outcome of one operation depends on, as a key.

Enters: an operator, how many arguments are passed by position and which by name: one *form* of
call. Leaves: a function that makes the key of such a call. Invariant: two calls of one form with
equal keys have outcomes of equal metadata, but for the guards of :mod:`torchfake._recipes`.

A key is a tuple: a fake stands in it as its record, a list as a tuple, anything else as itself,
with its type where the schema leaves that open, since 1 and 1.0 and True are equal. One element
more says that a value is known. Calls with a number or nothing where the schema has a tensor have
keys of another form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from torchfake._call import Args, Kwargs
from torchfake._tensor import FakeTensor

KeyFunction = Callable[[Args, Kwargs | None], tuple[Any, ...]]


class NoKeyError(TypeError):
    """An argument that no key can hold: a real tensor, a generator, a symbolic size."""


def form_of(args: Args, kwargs: Kwargs | None) -> Any:
    """How many arguments are passed by position, and which by name. torch leaves out those that
    are at their default.
    """
    return (len(args), *kwargs) if kwargs else len(args)


class _Part(NamedTuple):
    """The texts for one argument, whose name stands for ``{0}``."""

    key: str  # what a key holds of it
    value: str = ""  # its value, for a tensor: None if not known


_TENSOR = _Part("{0}._fake_meta", "{0}._fake_storage.value")
_TENSOR_OR_NONE = _Part(
    "(None if {0} is None else {0}._fake_meta)",
    "(None if {0} is None else {0}._fake_storage.value)",
)
_LIST = _Part("tuple({0})")
_LIST_OR_NONE = _Part("(None if {0} is None else tuple({0}))")
_TENSORS = _Part("any_key({0})")
_NUMBER = _Part("type({0}), {0}")
_ITSELF = _Part("{0}")

_PARTS = {
    "Tensor": _TENSOR,
    "Optional[Tensor]": _TENSOR_OR_NONE,
    "List[Tensor]": _TENSORS,
    "Optional[List[Tensor]]": _TENSORS,
    "List[Optional[Tensor]]": _TENSORS,
    "List[number]": _TENSORS,
    "List[int]": _LIST,
    "List[bool]": _LIST,
    "Optional[List[int]]": _LIST_OR_NONE,
    "Optional[List[float]]": _LIST_OR_NONE,
    "number": _NUMBER,
    "Optional[number]": _NUMBER,
    "Optional[Generator]": _Part("no_generator({0})"),
}
_PARTS |= dict.fromkeys(("int", "bool", "float", "str", "Device"), _ITSELF)
_PARTS |= {f"Optional[{t}]": _ITSELF for t in ("int", "bool", "float", "str", "Device")}


def key_function(func: Any, args: Args, kwargs: Kwargs) -> KeyFunction | None:
    """What makes the keys of calls of `func` of the form of this one; None if nothing can."""
    arguments = func._schema.arguments
    named = {a.name: a for a in arguments}
    passed = [*arguments[: len(args)], *(named[name] for name in kwargs)]
    parts = [_PARTS.get(str(argument.type)) for argument in passed]
    if None in parts:
        return None
    return _compile(tuple(parts), len(args))


@cache
def _compile(parts: tuple[_Part, ...], num_positional: int) -> KeyFunction:
    """The key function of a form, as one expression without a loop.

    Made from text, as dataclasses and named tuples make theirs: a loop over the arguments would
    take longer than all the rest of a hit but the wrapper.
    """
    names = [f"a{i}" for i in range(len(parts))]
    both = list(zip(parts, names, strict=True))
    values = [part.value.format(name) for part, name in both if part.value]
    key = "".join(part.key.format(name) + ", " for part, name in both)
    text = f"""
def key(args, kwargs):
    {_unpacking(names[:num_positional], "args")}
    {_unpacking(names[num_positional:], "kwargs.values()")}
    try:
        if {" is ".join([*values, "None"] if values else ["True"])}:
            return ({key})
        return ({key}True,)
    except AttributeError:  # no fake where the schema has a tensor
        pass
    return any_key((args, kwargs))
"""
    namespace: dict[str, Any] = {"any_key": _any_key, "no_generator": _no_generator}
    exec(text, namespace)
    return namespace["key"]  # type: ignore[no-any-return]


def _unpacking(names: list[str], source: str) -> str:
    return f"({', '.join(names)},) = {source}" if names else "pass"


def _no_generator(generator: Any) -> None:
    if generator is not None:
        raise NoKeyError("no key holds a generator")


_ATOMS = frozenset(
    {int, float, bool, complex, str, type(None),
     torch.dtype, torch.device, torch.layout, torch.memory_format}
)  # fmt: skip


def _any_key(value: Any) -> Any:
    """The key of anything that can have one, with all that can matter about it."""
    if isinstance(value, FakeTensor):
        return value._fake_meta, value._fake_storage.value is None
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_any_key, value))
    if isinstance(value, dict):
        return tuple((name, _any_key(item)) for name, item in value.items())
    if type(value) in _ATOMS:
        return type(value), value
    raise NoKeyError(f"no key holds a {type(value).__name__}")
