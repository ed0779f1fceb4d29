"""What a value is made of: shapes, dtypes and devices in place of tensors.

Enters: what a module takes or gives. Leaves: the same containers with a :class:`TensorSpec` for
each tensor, ready for JSON and for text. Invariant: no tensor is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch


class TensorSpec(NamedTuple):
    """One tensor, without its data."""

    shape: tuple[int, ...]
    dtype: str  # without "torch."
    device: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} on {self.device}"

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return {"shape": list(self.shape), "dtype": self.dtype, "device": self.device}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype, without "torch.".

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The spec of one tensor."""
    return TensorSpec(tuple(tensor.shape), dtype_name(tensor.dtype), str(tensor.device))


def described(value: Any) -> Any:
    """A value with specs in place of its tensors; objects that hold tensors become dicts.

    >>> described({"x": torch.ones(2, 3), "scale": 0.5})
    {'x': TensorSpec(shape=(2, 3), dtype='float32', device='cpu'), 'scale': 0.5}
    """
    return _described(value, ())


def _described(value: Any, above: tuple[int, ...]) -> Any:
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if id(value) in above:
        return "..."
    above = (*above, id(value))
    if isinstance(value, Mapping):
        return {str(key): _described(item, above) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {
            name: _described(item, above) for name, item in zip(value._fields, value, strict=True)
        }
    if isinstance(value, (list, tuple)):
        return [_described(item, above) for item in value]
    held = {k: v for k, v in getattr(value, "__dict__", {}).items() if not callable(v)}
    inside = {name: _described(item, above) for name, item in held.items()}
    kept = {name: item for name, item in inside.items() if holds_tensors(item)}
    return kept or type(value).__name__


def holds_tensors(structure: Any) -> bool:
    """Whether a structure, as :func:`described` gives it, has a spec anywhere."""
    if isinstance(structure, TensorSpec):
        return True
    items = structure.values() if isinstance(structure, dict) else structure
    return isinstance(structure, (dict, list)) and any(holds_tensors(item) for item in items)


def plain_structure(structure: Any) -> Any:
    """A structure ready for JSON."""
    if isinstance(structure, TensorSpec):
        return structure.to_dict()
    if isinstance(structure, dict):
        return {name: plain_structure(item) for name, item in structure.items()}
    if isinstance(structure, list):
        return [plain_structure(item) for item in structure]
    return repr(structure) if isinstance(structure, complex) else structure


def lines_of(structure: Any, name: str = "") -> list[tuple[str, str]]:
    """A structure as lines, each a name with dots and what is there; equal neighbours as one.

    >>> lines_of({"a": [TensorSpec((2,), "int64", "cpu")] * 3})
    [('a.0-2', 'int64[2] on cpu')]
    """
    if isinstance(structure, TensorSpec):
        return [(name, str(structure))]
    if not isinstance(structure, (dict, list)):
        return [(name, repr(structure))]
    pairs = enumerate(structure) if isinstance(structure, list) else structure.items()
    lines: list[tuple[str, str]] = []
    runs: list[tuple[str, str, Any]] = []  # first name, last name, what they are
    for key, item in pairs:
        if runs and isinstance(structure, list) and runs[-1][2] == item:
            runs[-1] = (runs[-1][0], str(key), item)
        else:
            runs.append((str(key), str(key), item))
    for first, last, item in runs:
        key = first if first == last else f"{first}-{last}"
        lines += lines_of(item, f"{name}.{key}" if name else key)
    return lines


def call_text(names: list[str], values: list[Any]) -> str:
    """Arguments as an error shows them: ``self float32[4] on cpu, dim 1``."""
    texts = []
    for name, value in zip(names, values, strict=True):
        text = _argument_text(described(value))
        texts.append(f"{name} {text}" if name else text)
    return ", ".join(texts)


def _argument_text(structure: Any) -> str:
    if isinstance(structure, list):
        return f"[{', '.join(_argument_text(item) for item in structure)}]"
    return str(structure) if isinstance(structure, TensorSpec) else repr(structure)
