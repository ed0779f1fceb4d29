"""Tables of sines that libraries compute in numpy, one element at a time: computed by columns.

Input: functions of transformers that fill such a table (:data:`_FUNCTIONS`), once their modules are
imported. Output: versions that, in a mode, run the same code with columns in the place of elements.
Invariant: each element is computed by the operations of the original in its order, and so has its
bits; a function whose text is not of the known form is left as it is.

They take a second for a table of 512 positions, more than all the rest of a model, and skip it on
the meta device alone. Their form is ``np.array([[pos / np.power(10000, f(j)) for j in range(dim)]
for pos in range(n_pos)])``. So their code runs with a ``range`` that gives all positions at once,
as an array, the first time that it is called; and with an ``np.array`` that puts the columns
together.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
from typing import Any

import numpy as np

from torchfake._core import modes
from torchfake._patches.patch import Patch

_MODELS = "transformers.models"
_OF_WEIGHTS = {
    "autoformer.modeling_autoformer": "AutoformerSinusoidalPositionalEmbedding",
    "informer.modeling_informer": "InformerSinusoidalPositionalEmbedding",
    "marian.modeling_marian": "MarianSinusoidalPositionalEmbedding",
    "pegasus.modeling_pegasus": "PegasusSinusoidalPositionalEmbedding",
    "roformer.modeling_roformer": "RoFormerSinusoidalPositionalEmbedding",
    "time_series_transformer.modeling_time_series_transformer": (
        "TimeSeriesSinusoidalPositionalEmbedding"
    ),
}
_FUNCTIONS = {f"{_MODELS}.{name}": f"{cls}.create_weight" for name, cls in _OF_WEIGHTS.items()} | {
    f"{_MODELS}.distilbert.modeling_distilbert": "_create_sinusoidal_embeddings",
    f"{_MODELS}.flaubert.modeling_flaubert": "create_sinusoidal_embeddings",
    f"{_MODELS}.videomae.modeling_videomae": "get_sinusoid_encoding_table",
    f"{_MODELS}.xlm.modeling_xlm": "create_sinusoidal_embeddings",
}
"""By module: the function, of transformers 5.20 to 5.24."""

MODULES = tuple(_FUNCTIONS)

_POWER = re.compile(r"\w+ / np\.power\(10000, 2 \* \((\w+) // 2\) / \w+\) for \1 in range\(\w+\)\]")
"""The row of a table; ``range`` and ``np.array`` are called once more, for the rows."""


def is_known_form(function: Any) -> bool:
    """Whether the text of a function says that positions may be given as an array."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        return False
    names = [len(re.findall(name, text)) for name in (r"\brange\b", r"\bnp\.array\b")]
    return len(_POWER.findall(text)) == 1 and names == [2, 1]


class _NoTableError(Exception):
    """A table without rows or columns: there is nothing to put together."""


class _Ranges:
    """``range``, of which the first one is given as a single item: a column of all positions."""

    def __init__(self) -> None:
        self.is_first = True

    def __call__(self, length: int) -> Any:
        if length <= 0:
            raise _NoTableError
        if not self.is_first:
            return range(length)
        self.is_first = False
        return [np.arange(length)]


class _Numpy:
    """``numpy``, whose ``array`` makes a table of one row of columns."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def array(rows: list[list[Any]]) -> Any:
        (columns,) = rows
        return np.stack(columns, axis=1)


def _by_columns(original: Any) -> Any:
    if not is_known_form(original):
        return original

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if modes.current() is None:
            return original(*args, **kwargs)
        names = {**original.__globals__, "range": _Ranges(), "np": _Numpy()}
        by_columns = types.FunctionType(
            original.__code__, names, original.__name__, original.__defaults__, original.__closure__
        )
        try:
            return by_columns(*args, **kwargs)
        except _NoTableError:  # raised before anything is done
            return original(*args, **kwargs)

    return replacement


def patches_of(module: str) -> list[Patch]:
    """The patches of a module; none before it is imported, or where it has no such function."""
    owner: Any = sys.modules.get(module)
    if owner is None:  # mostly, and each mode asks
        return []
    *path, name = _FUNCTIONS[module].split(".")
    for part in path:
        owner = getattr(owner, part, None)
    return [Patch(owner, name, _by_columns)] if hasattr(owner, name) else []
