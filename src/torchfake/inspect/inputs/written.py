"""Inputs as text, for modules of the user's own: ``8,64``, ``ids=int64[8, 64]``, ``n=int64[8]=64``.

Input: a module, and texts of the command line. Output: the arguments of its ``forward``, as fakes.
Invariant: a text is what summaries print of a tensor; values are unknown unless one is written, so
nothing is assumed of integers but that the module accepts them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchfake.errors import InputsError, did_you_mean
from torchfake.fake import fake_mode
from torchfake.inspect.describe.tensor_specs import dtype_name
from torchfake.inspect.inputs.example_inputs import device_of
from torchfake.inspect.targets.options import any_dtype_named, num_cuda_devices, parse_value

FORMS = "--input 8,64, --input int64[8,64] or --input NAME=int64[8,64], of one value as int64[8]=64"


class WrittenInput(NamedTuple):
    """One input as it was written."""

    text: str
    name: str | None  # of the argument; None: by position
    dtype: torch.dtype | None  # None: that of the module's parameters
    shape: tuple[int, ...]
    value: Any = None  # of all its elements, if known

    def tensor(self, default: torch.dtype, batch: int | None) -> torch.Tensor:
        """A tensor like this, in the current mode; of another batch size if that is given."""
        shape = self.shape if batch is None else (batch, *self.shape[1:])
        dtype = self.dtype or default
        if self.value is None:
            unknown = torch.empty(shape, dtype=torch.float32)  # of integers, it has zeros
            return unknown.to(dtype)
        if not _has(dtype, self.value):
            raise InputsError(f"--input {self.text!r}: {dtype_name(dtype)} has no {self.value}")
        return torch.full(shape, self.value, dtype=dtype)


_SIZES = r"\s*(?:\d+\s*(?:,\s*\d+\s*)*,?\s*)?"
_INPUT = re.compile(
    r"(?:(?P<name>[^\W\d]\w*)\s*=\s*)?"
    rf"(?:(?P<dtype>[^\W\d][\w.]*)?\s*(?:\[(?P<sizes>{_SIZES})\]|\((?P<tuple>{_SIZES})\))"
    r"|(?P<bare>\d[\d\s,]*))"
    r"(?:\s*=\s*(?P<value>\S+))?"
)


def parse_input(text: str) -> WrittenInput:
    """One input from its text.

    Raises:
        InputsError: if it is not of a form that is known, or there is no such dtype.

    >>> parse_input("ids=int64[8, 64]")[1:]
    ('ids', torch.int64, (8, 64), None)
    """
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise InputsError(f"--input {text!r} is no shape: write {FORMS}")
    sizes = match["sizes"] or match["tuple"] or match["bare"] or ""
    shape = tuple(int(size) for size in re.findall(r"\d+", sizes))
    dtype = None if match["dtype"] is None else any_dtype_named(match["dtype"])
    value = None if match["value"] is None else _number(text, match["value"])
    return WrittenInput(text, match["name"], dtype, shape, value)


def _has(dtype: torch.dtype, value: float) -> bool:
    """Whether a dtype has this value, rounded if it is of floating point."""
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype is torch.bool:
        return value in (0, 1)
    limits = torch.iinfo(dtype)
    return value == int(value) and limits.min <= value <= limits.max


def _number(text: str, written: str) -> Any:
    value = parse_value(written.lower() if written in ("True", "False") else written)
    if not isinstance(value, (bool, int, float)):
        raise InputsError(f"--input {text!r}: {written!r} is no number, true or false")
    return value


class WrittenInputs:
    """The inputs of a module, written by the user.

    Args:
        module: what they are for.
        texts: one for each argument of its ``forward``, those without a name by position.

    Raises:
        InputsError: if one is not understood, or they are not the arguments of ``forward``.
    """

    def __init__(self, module: nn.Module, texts: Sequence[str]) -> None:
        self._inputs = [parse_input(text) for text in texts]
        self._names = _argument_names(module, self._inputs)
        self._device = device_of(module)
        self._dtype = next(
            (p.dtype for p in module.parameters() if p.is_floating_point()),
            torch.get_default_dtype(),
        )

    @property
    def batch(self) -> int:
        """The first size of the first input that has one."""
        return next((each.shape[0] for each in self._inputs if each.shape), 1)

    def make(self, batch: int | None = None) -> tuple[Any, ...]:
        """The inputs after the module, as ``check`` and others take them, as fakes.

        Args:
            batch: in place of the first size of all inputs that have the size of the batch there.
        """
        with fake_mode(fake_cuda=num_cuda_devices(self._device)), self._device:
            made = [each.tensor(self._dtype, self._resized(each, batch)) for each in self._inputs]
        if self._names is None:
            return tuple(made)
        return (dict(zip(self._names, made, strict=True)),)

    def _resized(self, each: WrittenInput, batch: int | None) -> int | None:
        return batch if each.shape and each.shape[0] == self.batch else None


def _argument_names(module: nn.Module, inputs: Sequence[WrittenInput]) -> list[str] | None:
    """The argument of ``forward`` that each input is; None if all are given by position."""
    parameters = inspect.signature(module.forward).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    given = [each.name for each in inputs if each.name is not None]
    what = f"{type(module).__name__}.forward"
    for name in given:
        if name not in named and not takes_all:
            hint = did_you_mean(name, named) or f", but {', '.join(named) or 'none'}"
            raise InputsError(f"{what} takes no argument {name!r}{hint}")
        if given.count(name) > 1:
            raise InputsError(f"--input {name}=... is given twice")
    free = [n for n, p in named.items() if n not in given and p.kind is not p.KEYWORD_ONLY]
    num_by_position = len(inputs) - len(given)
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if num_by_position > len(free) and not takes_more:
        listed = ", ".join(named) or "none"
        raise InputsError(f"{what} takes fewer inputs than the {len(inputs)} given: {listed}")
    missing = [n for n in free[num_by_position:] if named[n].default is inspect.Parameter.empty]
    missing += [
        n
        for n, p in named.items()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and n not in given
    ]
    if missing:
        needs = " ".join(f"--input {name}=int64[8,64]" for name in missing)
        raise InputsError(f"{what} needs more inputs, with their dtypes and shapes: {needs}")
    if not given:
        return None
    positions = iter(free)
    return [next(positions) if each.name is None else each.name for each in inputs]


def inputs_advice(module: nn.Module) -> str:
    """What to write for a module for which no inputs can be made up."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty and "VAR" not in p.kind.name]
    listed = f" ({', '.join(names)})" if names else ""
    return (
        f"inputs can be generated for transformers models; for {type(module).__name__} give one "
        f"for each argument of its forward{listed}: {FORMS}"
    )
