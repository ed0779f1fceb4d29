"""Shape, dtype and device in place of each tensor of a value.

Input: the inputs, outputs or arguments of a module or operator. Output: a copy of the value with a
:class:`TensorSpec` in place of each tensor, also as JSON and as lines of text. Invariant: no tensor
is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torchfake._core.pickle_names import publish


class TensorSpec(NamedTuple):
    """Shape, dtype and device of one tensor."""

    shape: tuple[int, ...]
    dtype: str  # without "torch."
    device: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} on {self.device}"

    @property
    def num_bytes(self) -> int:
        """The bytes of the tensor's elements."""
        return int(math.prod(self.shape) * getattr(torch, self.dtype).itemsize)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        return {"shape": list(self.shape), "dtype": self.dtype, "device": self.device}


publish(TensorSpec, "torchfake.inspect.specs")


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, without "torch.".

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The spec of one tensor."""
    return TensorSpec(tuple(tensor.shape), dtype_name(tensor.dtype), str(tensor.device))


def to_specs(value: Any) -> Any:
    """A copy of a value with specs in place of tensors; objects with tensors become dicts.

    >>> to_specs({"x": torch.ones(2, 3), "scale": 0.5})
    {'x': TensorSpec(shape=(2, 3), dtype='float32', device='cpu'), 'scale': 0.5}
    """
    return _to_specs(value, ())


def _to_specs(value: Any, parents: tuple[int, ...]) -> Any:
    """The specs of a value in containers with the ids `parents`, where these become ``"..."``."""
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if id(value) in parents:
        return "..."
    parents = (*parents, id(value))
    if isinstance(value, Mapping):
        return {str(key): _to_specs(item, parents) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {
            name: _to_specs(item, parents) for name, item in zip(value._fields, value, strict=True)
        }
    if isinstance(value, (list, tuple)):
        return [_to_specs(item, parents) for item in value]
    attributes = {k: v for k, v in getattr(value, "__dict__", {}).items() if not callable(v)}
    specs = {name: _to_specs(item, parents) for name, item in attributes.items()}
    with_tensors = {name: item for name, item in specs.items() if contains_spec(item)}
    return with_tensors or type(value).__name__


def contains_spec(structure: Any) -> bool:
    """Whether a structure that :func:`to_specs` returned contains a spec."""
    if isinstance(structure, TensorSpec):
        return True
    items = structure.values() if isinstance(structure, dict) else structure
    return isinstance(structure, (dict, list)) and any(contains_spec(item) for item in items)


def to_json(structure: Any) -> Any:
    """A structure of specs, as a value for JSON."""
    if isinstance(structure, TensorSpec):
        return structure.to_dict()
    if isinstance(structure, dict):
        return {name: to_json(item) for name, item in structure.items()}
    if isinstance(structure, list):
        return [to_json(item) for item in structure]
    return repr(structure) if isinstance(structure, complex) else structure


def to_lines(structure: Any, name: str = "") -> list[tuple[str, str]]:
    """A structure of specs as lines, each a dotted name and a value; equal neighbours share a line.

    >>> to_lines({"a": [TensorSpec((2,), "int64", "cpu")] * 3})
    [('a.0-2', 'int64[2] on cpu')]
    """
    if isinstance(structure, TensorSpec):
        return [(name, str(structure))]
    if not isinstance(structure, (dict, list)):
        return [(name, repr(structure))]
    pairs = enumerate(structure) if isinstance(structure, list) else structure.items()
    lines: list[tuple[str, str]] = []
    runs: list[tuple[str, str, Any]] = []  # first key, last key, the value of all of them
    for key, item in pairs:
        if runs and isinstance(structure, list) and runs[-1][2] == item:
            runs[-1] = (runs[-1][0], str(key), item)
        else:
            runs.append((str(key), str(key), item))
    for first, last, item in runs:
        key = first if first == last else f"{first}-{last}"
        lines += to_lines(item, f"{name}.{key}" if name else key)
    return lines


def arguments_text(names: list[str], values: list[Any]) -> str:
    """The arguments of a call for an error message: ``self float32[4] on cpu, dim 1``."""
    texts = []
    for name, value in zip(names, values, strict=True):
        text = _argument_text(to_specs(value))
        texts.append(f"{name} {text}" if name else text)
    return ", ".join(texts)


def _argument_text(structure: Any) -> str:
    if isinstance(structure, list):
        return f"[{', '.join(_argument_text(item) for item in structure)}]"
    return str(structure) if isinstance(structure, TensorSpec) else repr(structure)
