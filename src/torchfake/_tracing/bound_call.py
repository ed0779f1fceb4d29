"""A function bound to its arguments, and called again with some of them replaced.

Input: a function or module, and the arguments of a call. Output: the call as a function of some of
its arguments, which a tracer takes as the inputs of the graph. Invariant: arguments have the names
that the function's signature gives them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn


class BoundCall:
    """A function and its arguments, by name."""

    def __init__(self, function: Callable[..., Any], inputs: Any, kwargs: dict[str, Any]) -> None:
        bound = signature_of(function).bind(*inputs, **kwargs)
        self._function = function
        self._positional = list(_positional_names(bound))
        self.values = {**dict(zip(self._positional, bound.args, strict=True)), **bound.kwargs}

    def with_values(self, values: dict[str, Any]) -> Any:
        """Call the function with other values for the arguments named in `values`."""
        values = {**self.values, **values}
        args = [values.pop(name) for name in self._positional]
        return self._function(*args, **values)

    def as_function_of(self, names: list[str], context: Any) -> Callable[..., Any]:
        """A function of the arguments `names` that makes the call inside `context`."""

        def call(*values: Any) -> Any:
            with context:
                return self.with_values(dict(zip(names, values, strict=True)))

        identifiers = [n if n.isidentifier() else f"arg{i}" for i, n in enumerate(names)]
        parameters = ", ".join(identifiers)  # a tracer names its inputs after them
        return eval(f"lambda {parameters}: call({parameters})", {"call": call})  # type: ignore[no-any-return]


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, or of a module's ``forward``."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        return inspect.signature(called)
    except ValueError:  # a builtin, as most functions of torch
        return inspect.signature(lambda *arg, **kwargs: None)


def _positional_names(bound: inspect.BoundArguments) -> Iterator[str]:
    """The names of the positional arguments, in order; the arguments in ``*args`` are numbered."""
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    num_left = len(bound.args)
    for name in bound.arguments:
        if not num_left:
            return
        if kinds[name] is inspect.Parameter.VAR_POSITIONAL:
            yield from (f"{name}_{i}" for i in range(num_left))
            return
        yield name
        num_left -= 1
