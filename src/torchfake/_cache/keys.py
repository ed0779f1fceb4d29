"""The signature and the key of a call: what its outcome depends on.

Input: an operator and the arguments of one call. Output: its signature (how many arguments are
passed by position and which by name), and for each signature a function that makes keys. Invariant:
two calls of equal signature and equal key have outcomes of equal metadata, but for the guards of
``_cache/recipes``.

A key is a tuple: a fake stands in it as its metadata record, a list as a tuple, anything else as
itself, with its type where the schema leaves that open, since 1 and 1.0 and True are equal. Of a
fake alone, the record itself is the key. One element more says that values are known from which
that of the result may follow, or which numbers among them are not finite: what is computed from
these is not assumed to be. Calls with a number or nothing where the schema has a tensor have keys
of another layout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from torchfake._core.schemas import OpTraits, traits_of
from torchfake._operators.operator_call import Args, Kwargs
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends
from torchfake._unknown_values import assumptions, finiteness

KeyFunction = Callable[[Args, Kwargs | None], Any]


class NoKeyError(TypeError):
    """An argument that cannot be part of a key: a real tensor, a generator, a symbolic size."""


def signature_of(args: Args, kwargs: Kwargs | None) -> Any:
    """How many arguments are passed by position, and which by name. torch leaves out those that
    are at their default.
    """
    return (len(args), *kwargs) if kwargs else len(args)


class _Template(NamedTuple):
    """Source text for one argument; ``{0}`` stands for its name."""

    key: str  # its part of the key
    storage: str = ""  # of a tensor
    is_unknown: str = ""  # whether that storage, ``{0}``, is there and has no known value
    is_known: str = ""  # whether it is there and has one


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
_NUMBER = _Template("type({0}), {0}")
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
"""By the type that the schema gives an argument. Calls with an argument of another have no key."""

_TEMPLATES |= dict.fromkeys(("int", "bool", "float", "str", "Device"), _ITSELF)
_TEMPLATES |= {f"Optional[{t}]": _ITSELF for t in ("int", "bool", "float", "str", "Device")}


class Facts(NamedTuple):
    """What the key function of an operator depends on, beside the signature."""

    returns_uninitialized: bool
    writes_first: bool
    needs_all_values: bool
    divides: bool


class Layout(NamedTuple):
    """What the calls of one operator and signature have in common, for the text of functions."""

    templates: tuple[_Template, ...]  # of the arguments that are passed
    num_positional: int
    names: tuple[str, ...]  # of the others
    facts: Facts

    @property
    def variables(self) -> list[str]:
        """The name of each argument in the text."""
        return [f"a{i}" for i in range(len(self.templates))]

    @property
    def tensors(self) -> list[tuple[_Template, str, str]]:
        """The arguments that are tensors: the template, and the names of tensor and storage."""
        pairs = zip(self.templates, self.variables, strict=True)
        return [(template, a, f"s{a}") for template, a in pairs if template.storage]

    @property
    def storages(self) -> str:
        """Statements that give the storages their names."""
        return "; ".join(f"{s} = {each.storage.format(a)}" for each, a, s in self.tensors)

    @property
    def is_known(self) -> list[str]:
        """Of each tensor, whether its value is known."""
        return [template.is_known.format(s) for template, _, s in self.tensors]

    @property
    def parts(self) -> str:
        """The parts of the key if no value is known.

        Keys of what returns empty memory tell whether torch fills that; keys of what writes its
        first argument, which of the others are on its storage: with the metadata, that tells where
        they overlap.
        """
        parts = [each.key.format(a) for each, a in zip(self.templates, self.variables, strict=True)]
        parts += ["fills_memory()"] * self.facts.returns_uninitialized
        if self.facts.writes_first and self.templates[0] is _TENSOR:
            parts += [f"{s} is sa0" for _, _, s in self.tensors[1:]]
        return "".join(f"{part}, " for part in parts)

    @property
    def unknown_key(self) -> str:
        """The key if no value is known."""
        parts = self.parts
        is_record = self.templates == (_TENSOR,) and parts.count(",") == 1
        return parts.removesuffix(", ") if is_record else f"({parts})"


def layout_of(func: Any, args: Args, kwargs: Kwargs) -> Layout | None:
    """The layout of calls of `func` of this call's signature; None if they can have no key."""
    arguments = func._schema.arguments
    by_name = {a.name: a for a in arguments}
    passed = [*arguments[: len(args)], *(by_name[name] for name in kwargs)]
    templates = [_TEMPLATES.get(str(argument.type)) for argument in passed]
    if None in templates:
        return None
    traits = traits_of(func)
    facts = Facts(
        returns_uninitialized=traits.returns_uninitialized,
        writes_first=traits.mutated_positions == (0,) and len(args) > 0,
        needs_all_values=needs_all_values(traits),
        divides=finiteness.divides(traits.packet),
    )
    return Layout(tuple(templates), len(args), tuple(kwargs), facts)  # type: ignore[arg-type]


def needs_all_values(traits: OpTraits) -> bool:
    """Whether results have values only where all arguments have one; else values do not matter."""
    depends_on_some = traits.mutated_names or traits.is_random or traits.reads_values
    return not depends_on_some and not assumptions.is_known_if_one_is(traits.packet)


@cache
def key_function(layout: Layout) -> KeyFunction:
    """The key function of a signature, as one expression without a loop.

    Made from text, as dataclasses and named tuples make theirs: a loop over the arguments would
    take longer than all the rest of a hit but the wrapper.
    """
    names, tensors, known = layout.variables, layout.tensors, layout.is_known
    unknown = [template.is_unknown.format(s) for template, _, s in tensors]
    is_partly_known = layout.facts.needs_all_values and len(tensors) > 1
    marks = [
        f"({each} and {'mark_of_divisor' if i == 1 and layout.facts.divides else 'mark_of'}({a}))"
        for i, (each, (_, a, _)) in enumerate(zip(known, tensors, strict=True))
    ]
    parts, key = layout.parts, layout.unknown_key
    fills = "fills_memory(), " if layout.facts.returns_uninitialized else ""
    text = f"""
def key(args, kwargs):
    {_unpacking(names[: layout.num_positional], "args")}
    {_unpacking(names[layout.num_positional :], "kwargs.values()")}
    try:
        {layout.storages or "pass"}
        if {f"not ({' or '.join(known)})" if tensors else "True"}:
            return {key}
        if {" or ".join(unknown) if is_partly_known else "False"}:
            mark = {" | ".join(marks) or "0"}
            return ({parts}-mark,) if mark else {key}
        return ({parts}True,)
    except AttributeError:  # no fake where the schema has a tensor
        pass
    return generic_key((args, kwargs, {fills}))
"""
    namespace = dict(NAMES)
    exec(text, namespace)
    return namespace["key"]  # type: ignore[no-any-return]


def _unpacking(names: list[str], source: str) -> str:
    return f"({', '.join(names)},) = {source}" if names else "pass"


def _refuse_generator(generator: Any) -> None:
    if generator is not None:
        raise NoKeyError("a generator cannot be part of a key")


_ATOMIC_TYPES = frozenset(
    {int, float, bool, complex, str, type(None),
     torch.dtype, torch.device, torch.layout, torch.memory_format}
)  # fmt: skip


def _generic_key(value: Any) -> Any:
    """The key of anything that can have one, with all that can matter about it.

    Where all values are known, what is in them does not: they are not looked at, which would
    compute those that are computed when they are read.
    """
    return _key_of(value, _known_mark if are_known(value) else _mark_if_known)


def _key_of(value: Any, mark: Callable[[FakeTensor], Any]) -> Any:
    if isinstance(value, FakeTensor):
        return value._fake_meta, mark(value)
    if isinstance(value, (list, tuple)):
        return (type(value), *[_key_of(item, mark) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key_of(item, mark)) for name, item in value.items()])
    if type(value) in _ATOMIC_TYPES:
        return type(value), value
    raise NoKeyError(f"a {type(value).__name__} cannot be part of a key")


def are_known(value: Any) -> bool:
    """Whether all fakes in `value`, and in what it contains, have known values."""
    if isinstance(value, FakeTensor):
        return value._fake_storage.is_known
    if isinstance(value, dict):
        return all(map(are_known, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(are_known, value))


def _known_mark(_: FakeTensor) -> str:
    return "known"


def _mark_if_known(fake: FakeTensor) -> int | None:
    return None if fake._fake_storage.value is None else finiteness.mark_of(fake)


NAMES: dict[str, Any] = {
    "generic_key": _generic_key,
    "mark_of": finiteness.mark_of,
    "mark_of_divisor": finiteness.mark_of_divisor,
    "refuse_generator": _refuse_generator,
    "fills_memory": backends.is_deterministic,
}
"""What the text of keys names."""
