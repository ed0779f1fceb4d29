"""Inputs written as text, for any module: ``8,64``, ``ids=int64[8, 64]``, ``n=int64[8]=64``.

Input: a module, and texts of the command line. Output: the arguments of its ``forward``, as fakes.
Invariant: the notation is the one in which summaries print tensors; values are unknown unless the
text gives one.
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
from torchfake.inspect.inputs.example_inputs import device_of
from torchfake.inspect.records.tensor_specs import dtype_name
from torchfake.inspect.targets.options import any_dtype_named, num_cuda_devices, parse_value

_FORMS = (
    "--input 8,64, --input int64[8,64] or --input NAME=int64[8,64], of one value as int64[8]=64"
)


class WrittenInput(NamedTuple):
    """One input, parsed from its text."""

    text: str
    name: str | None  # of the argument; None: by position
    dtype: torch.dtype | None  # None: the dtype of the module's parameters
    shape: tuple[int, ...]
    value: Any = None  # the value of all elements; None: unknown

    def tensor(self, default: torch.dtype, batch: int | None) -> torch.Tensor:
        """Create the tensor in the active mode; `default` is its dtype if the text has none."""
        shape = self.shape if batch is None else (batch, *self.shape[1:])
        dtype = self.dtype or default
        if self.value is None:
            unknown = torch.empty(shape, dtype=torch.float32)  # fakes of integers are known zeros
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
    """Parse the text of one input.

    Raises:
        InputsError: if the text has none of the known forms, or the dtype does not exist.

    >>> parse_input("ids=int64[8, 64]")[1:]
    ('ids', torch.int64, (8, 64), None)
    """
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise InputsError(f"--input {text!r} is no shape: write {_FORMS}")
    sizes = match["sizes"] or match["tuple"] or match["bare"] or ""
    shape = tuple(int(size) for size in re.findall(r"\d+", sizes))
    dtype = None if match["dtype"] is None else any_dtype_named(match["dtype"])
    value = None if match["value"] is None else _number(text, match["value"])
    return WrittenInput(text, match["name"], dtype, shape, value)


def _has(dtype: torch.dtype, value: float) -> bool:
    """Whether a dtype can represent a value; floating point dtypes round any value."""
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
        module: the module.
        texts: one for each argument of its ``forward``; texts without a name are positional.

    Raises:
        InputsError: if a text is invalid, or the texts do not match the arguments of ``forward``.
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
        """The batch size: the first dimension of the first input that has dimensions."""
        return next((each.shape[0] for each in self._inputs if each.shape), 1)

    def make(self, batch: int | None = None) -> tuple[Any, ...]:
        """The inputs as fakes, as the arguments of ``check`` and others after the module.

        Args:
            batch: another batch size, for inputs whose first dimension has the written batch size.
        """
        with fake_mode(fake_cuda=num_cuda_devices(self._device)), self._device:
            made = [each.tensor(self._dtype, self._resized(each, batch)) for each in self._inputs]
        if self._names is None:
            return tuple(made)
        return (dict(zip(self._names, made, strict=True)),)

    def _resized(self, each: WrittenInput, batch: int | None) -> int | None:
        return batch if each.shape and each.shape[0] == self.batch else None


def _argument_names(module: nn.Module, inputs: Sequence[WrittenInput]) -> list[str] | None:
    """The name of the argument of ``forward`` for each input; None if all are positional."""
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
