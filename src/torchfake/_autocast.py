"""autocast for fakes."""

from __future__ import annotations

from typing import Any

from torchfake import _private


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _private.no_subclass_functions():
        return func(*args, **kwargs)
