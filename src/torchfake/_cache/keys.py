"""The signature and the key of a call: the facts on which its outcome depends.

Input: an operator and the arguments of one call. Output: its signature (how many arguments are
passed by position and which by name), and for each signature a function that makes keys. Invariant:
if the guards of ``_cache/recipes`` hold too, two calls of equal signature and equal key have
outcomes of equal metadata.

A key is a tuple with an element for each argument: the metadata record of a fake, a tuple for a
list, any other argument itself, preceded by its type where the schema allows several types, since
1, 1.0 and True are equal; 0.0 and -0.0, which are equal too, are texts there. The size of a storage
follows where an operator may refuse because of it. The key of a call with a single fake is the
record itself. A key ends with True if the value of the result may follow
from known values. If the value cannot follow, since others are unknown, the key ends with a
negative number if the known ones (an infinity, a zero divisor) may make the result infinite or NaN.
Calls with a number or None in the place of a tensor have keys from ``_generic_key``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from torchfake._core.schemas import OpTraits, traits_of
from torchfake._eager_checks import values
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends
from torchfake._unknown_values import assumptions, finiteness

KeyFunction = Callable[[Args, Kwargs | None], Any]


class NoKeyError(TypeError):
    """Raised for an argument that no key can contain: a real tensor, generator or symbolic size."""


def signature_of(args: Args, kwargs: Kwargs | None) -> Any:
    """The number of positional arguments, and the names of the others. torch does not pass
    arguments that have their default value.
    """
    return (len(args), *kwargs) if kwargs else len(args)


class _Template(NamedTuple):
    """Source text for one argument; ``{0}`` stands for the name of its variable."""

    key: str  # the argument's part of the key
    storage: str = ""  # the storage, if the argument is a tensor
    is_unknown: str = ""  # whether the storage ``{0}`` is not None and has no known value
    is_known: str = ""  # whether the storage ``{0}`` is not None and has a known value


_TENSOR = _Template("{0}._fake_meta", "{0}._fake_storage", "{0}.value is None",
                    "{0}.value is not None")  # fmt: skip
_TENSOR_OR_NONE = _Template(
    "(None if {0} is None else {0}._fake_meta)",
    "(None if {0} is None else {0}._fake_storage)",
    "({0} is not None and {0}.value is None)",
    "({0} is not None and {0}.value is not None)",
)
_LIST = _Template("tuple({0})")
_LIST_OR_NONE = _Template("(None if {0} is None else tuple({0}))")
_TENSORS = _Template("generic_key({0})")
_NUMBER = _Template("type({0}), {0} if type({0}) is not float else {0} or repr({0})")
_ITSELF = _Template("{0}")

_TEMPLATES = {
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
    "Optional[Generator]": _Template("refuse_generator({0})"),
}
"""Templates by argument type, as schemas print it. Calls with arguments of other types have no key.
"""

_TEMPLATES |= dict.fromkeys(("int", "bool", "float", "str", "Device"), _ITSELF)
_TEMPLATES |= {f"Optional[{t}]": _ITSELF for t in ("int", "bool", "float", "str", "Device")}


_REFUSES_BY_STORAGE = frozenset({"aten::as_strided"})
"""Operators that refuse what does not fit into the storage of their first argument, a tensor."""


class Layout(NamedTuple):
    """The calls of one operator and signature, as source text of the functions generated for them.

    The arguments are the variables ``a0``, ``a1``, ...; the storage of ``a0`` is ``sa0``.
    """

    variables: tuple[str, ...]  # one for each argument that is passed
    num_positional: int
    names: tuple[str, ...]  # of the arguments that are passed by name
    writes_first: bool
    storages: str  # statements that assign the storages to their variables
    is_known: str  # whether some value is known
    is_partly_known: str  # whether one is unknown besides, and the result needs all of them
    marks: str  # of values that are known, if others are not: see _unknown_values/finiteness
    fills: str  # an element of keys: whether torch fills memory that the operator leaves unset
    parts: str  # the elements of the key if no value is known
    unknown_key: str  # the key if no value is known
    known_key: str  # the key if the value of the result may follow from known values


def layout_of(func: Any, args: Args, kwargs: Kwargs) -> Layout | None:
    """The layout of calls of `func` with this signature; None if such calls have no key."""
    arguments = func._schema.arguments
    by_name = {a.name: a for a in arguments}
    passed = [*arguments[: len(args)], *(by_name[name] for name in kwargs)]
    templates = [_TEMPLATES.get(str(argument.type)) for argument in passed]
    if None in templates:
        return None
    return _layout(traits_of(func), templates, len(args), tuple(kwargs))  # type: ignore[arg-type]


def _layout(
    traits: OpTraits, templates: list[_Template], num_positional: int, names: tuple[str, ...]
) -> Layout:
    variables = tuple(f"a{i}" for i in range(len(templates)))
    pairs = list(zip(templates, variables, strict=True))
    tensors = [(template, a, f"s{a}") for template, a in pairs if template.storage]
    known = [template.is_known.format(s) for template, _, s in tensors]
    unknown = [template.is_unknown.format(s) for template, _, s in tensors]
    needs_all = needs_all_values(traits) and len(tensors) > 1
    writes_first = traits.mutated_positions == (0,) and num_positional > 0
    fills = "fills_memory(), " if traits.returns_uninitialized else ""
    parts = "".join(f"{template.key.format(a)}, " for template, a in pairs) + fills
    if (writes_first or assumptions.compares(traits.packet)) and templates[0] is _TENSOR:
        # With the metadata, this says where the arguments overlap. And numbers equal themselves.
        parts += "".join(f"{s} is sa0, " for _, _, s in tensors[1:])
    if traits.packet in _REFUSES_BY_STORAGE:
        parts += "sa0.num_bytes, "
    is_record = templates == [_TENSOR] and parts.count(",") == 1
    return Layout(
        variables,
        num_positional,
        names,
        writes_first,
        storages="; ".join(f"{s} = {each.storage.format(a)}" for each, a, s in tensors) or "pass",
        is_known=" or ".join(known) or "False",
        is_partly_known=" or ".join(unknown) if needs_all else "False",
        marks=_marks(traits, known, [a for _, a, _ in tensors]),
        fills=fills,
        parts=parts,
        unknown_key=parts.removesuffix(", ") if is_record else f"({parts})",
        known_key=f"({parts}True,)",
    )


def _marks(traits: OpTraits, known: list[str], tensors: list[str]) -> str:
    """An expression for the marks of the tensors whose values are known, together."""
    functions = ["mark_of"] * len(tensors)
    if finiteness.divides(traits.packet):
        functions[1:2] = ["mark_of_divisor"] * len(functions[1:2])
    each = zip(known, functions, tensors, strict=True)
    return " | ".join(f"({is_known} and {of}({a}))" for is_known, of, a in each) or "0"


def needs_all_values(traits: OpTraits) -> bool:
    """Whether a result has a known value only if all arguments have one."""
    depends_on_some = traits.mutated_names or traits.is_random or traits.reads_values
    depends_on_some = depends_on_some or values.takes_values(traits.packet)
    return not depends_on_some and not assumptions.is_known_if_one_is(traits.packet)


@cache
def key_function(layout: Layout) -> KeyFunction:
    """The key function of a signature, generated as text without a loop, as dataclasses generate
    methods: a loop would take longer than the rest of a hit without the new wrapper.
    """
    variables, num_positional = layout.variables, layout.num_positional
    text = f"""
def key(args, kwargs):
    {_unpacking(variables[:num_positional], "args")}
    {_unpacking(variables[num_positional:], "kwargs.values()")}
    try:
        {layout.storages}
        if not ({layout.is_known}):
            return {layout.unknown_key}
        if {layout.is_partly_known}:
            mark = {layout.marks}
            return ({layout.parts}-mark,) if mark else {layout.unknown_key}
        return {layout.known_key}
    except AttributeError:  # no fake where the schema has a tensor
        pass
    return generic_key((args, kwargs, {layout.fills}))
"""
    namespace = dict(NAMES)
    exec(text, namespace)
    return namespace["key"]  # type: ignore[no-any-return]


def _unpacking(names: tuple[str, ...], source: str) -> str:
    return f"({', '.join(names)},) = {source}" if names else "pass"


def _refuse_generator(generator: Any) -> None:
    if generator is not None:
        raise NoKeyError("a generator cannot be part of a key")


_ATOMIC_TYPES = frozenset(
    {int, float, bool, complex, str, type(None),
     torch.dtype, torch.device, torch.layout, torch.memory_format}
)  # fmt: skip


def _generic_key(value: Any) -> Any:
    """The key of an argument, or a container of arguments, of any type that a key can contain.

    If all values are known, it does not matter whether they are finite. They are not examined then,
    since that would compute lazy values.
    """
    return _key_of(value, are_known(value))


def _key_of(value: Any, all_known: bool) -> Any:
    if isinstance(value, FakeTensor):
        if all_known:
            return value._fake_meta, "known"
        has_value = value._fake_storage.value is not None
        return value._fake_meta, finiteness.mark_of(value) if has_value else None
    if isinstance(value, (list, tuple)):
        return (type(value), *[_key_of(item, all_known) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key_of(item, all_known)) for name, item in value.items()])
    if type(value) in _ATOMIC_TYPES:
        return type(value), value if type(value) is not float else value or repr(value)
    raise NoKeyError(f"a {type(value).__name__} cannot be part of a key")


def are_known(value: Any) -> bool:
    """Whether all fakes in `value`, in nested containers too, have known values."""
    if isinstance(value, FakeTensor):
        return value._fake_storage.is_known
    if isinstance(value, dict):
        return all(map(are_known, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(are_known, value))


NAMES: dict[str, Any] = {
    "generic_key": _generic_key,
    "mark_of": finiteness.mark_of,
    "mark_of_divisor": finiteness.mark_of_divisor,
    "refuse_generator": _refuse_generator,
    "fills_memory": backends.is_deterministic,
}
"""The globals of generated functions."""
