"""One call of an operator, its arguments by the names of the operator's schema.

Input: an operator, arguments and results, which are fakes. Output: a :class:`Call`. Invariant: an
argument that was not given has its default.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

Shape = tuple[int, ...]


class Call:
    """One call of an operator: ``call["weight"]`` is the argument of that name."""

    __slots__ = ("args", "func", "kwargs", "result")

    def __init__(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.func, self.args, self.kwargs, self.result = func, args, kwargs, result

    def __getitem__(self, name: str) -> Any:
        if name in self.kwargs:
            return self.kwargs[name]
        position, default = _arguments(self.func)[name]
        return self.args[position] if position < len(self.args) else default

    def one_of(self, *names: str) -> Any:
        """The argument that has one of these names: kernels name equal things differently."""
        known = _arguments(self.func)
        return self[next(name for name in names if name in known)]

    def has(self, name: str) -> bool:
        """Whether the operator has an argument of this name."""
        return name in _arguments(self.func)

    def given(self) -> dict[str, Any]:
        """All arguments by name."""
        return {name: self[name] for name in _arguments(self.func)}

    def shape(self, *names: str) -> Shape:
        """The shape of the tensor that is passed under one of these names."""
        return tuple(self.one_of(*names).shape)

    @property
    def output(self) -> Any:
        """The result, or the first of several."""
        return self.result[0] if isinstance(self.result, (list, tuple)) else self.result


@cache
def _arguments(func: Any) -> dict[str, tuple[int, Any]]:
    """The position and the default of each argument, by name."""
    arguments = func._schema.arguments
    return {each.name: (i, each.default_value) for i, each in enumerate(arguments)}


@cache
def functional_packet(func: Any) -> Any:
    """The operator without its overload, and without the underscore of one that works in place;
    an operator that calls functions (a higher-order one) is itself.
    """
    packet = getattr(func, "_overloadpacket", func)
    namespace, _, name = getattr(packet, "_qualified_op_name", "").partition("::")
    if not name.endswith("_") or name.startswith("__"):
        return packet
    return getattr(getattr(torch.ops, namespace), name[:-1], packet)
