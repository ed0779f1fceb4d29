"""The configs of two models, compared key by key.

Input: configs as dicts. Output: the keys that differ, with both values. Invariant: a key that says
nothing of the model, or what its tensors say already, is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

_NOT_OF_THE_MODEL = ("transformers_version", "architectures", "dtype", "torch_dtype")
"""Who wrote the config, and what tensors say; as do keys that begin with ``_``."""

_MOST_SHOWN = 3
_MOST_CHARACTERS = 40


class ConfigChange(NamedTuple):
    """A key of the configs whose values differ."""

    key: str  # with dots, as --config takes it
    a: Any  # None: the key is missing, or None
    b: Any

    @property
    def values(self) -> str:
        """``500000 -> 10000``."""
        return f"{_text(self.a)} -> {_text(self.b)}"


def config_of(module: nn.Module) -> dict[str, Any] | None:
    """The config of a module as a dict; None if it has none."""
    found: Any = getattr(module, "config", None)
    if hasattr(found, "to_dict"):
        found = found.to_dict()
    return dict(found) if isinstance(found, Mapping) else None


def config_changes(
    a: Mapping[str, Any] | None, b: Mapping[str, Any] | None
) -> tuple[ConfigChange, ...]:
    """The keys that differ, in the order of A; none if a side has no config."""
    if a is None or b is None:
        return ()
    in_a, in_b = dict(_flat(a, "")), dict(_flat(b, ""))
    both = ((key, in_a.get(key), in_b.get(key)) for key in in_a | in_b)
    return tuple(ConfigChange(*each) for each in both if each[1] != each[2])


def changes_text(changes: Sequence[ConfigChange]) -> str:
    """``the configs differ: rope_theta 500000 -> 10000, ...``; of many the first."""
    shown = changes if len(changes) == _MOST_SHOWN + 1 else changes[:_MOST_SHOWN]
    more = f" and {len(changes) - len(shown)} more" if len(changes) > len(shown) else ""
    return f"the configs differ: {', '.join(f'{c.key} {c.values}' for c in shown)}{more}"


def _flat(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        name = str(key)
        if name.startswith("_") or name in _NOT_OF_THE_MODEL:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", [*value] if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
