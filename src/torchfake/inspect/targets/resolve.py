"""Resolves a TARGET, the string of the command line, to something that builds a model.

Input: ``transformers:ClassName``, the path of a ``config.json``, or ``package.module:callable``,
and overrides. Output: a :class:`Target`; nothing is built yet. Invariant: whatever is wrong with
the string or with an override is a TargetError of one line that names the remedy. Called by: the
user, ``inspection``, ``initialize`` and ``contents``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from torchfake._contexts import Restoring, uninterrupted
from torchfake.errors import TargetError
from torchfake.inspect.describe.messages import did_you_mean, one_line
from torchfake.inspect.targets import transformers_models
from torchfake.inspect.targets.options import parse_overrides
from torchfake.inspect.targets.target import Target

FORMS = "transformers:ClassName, the path of a config.json, or package.module:callable"


def resolve(text: str, *, overrides: Sequence[str] = ()) -> Target:
    """The target that a TARGET names.

    Args:
        text: a TARGET.
        overrides: ``key=value`` each, for the config or for the callable's arguments.

    Raises:
        TargetError: if it names nothing that can be built, or an override is not understood.
        MissingExtraError: if it needs transformers and that is not installed.

    >>> resolve("torch.nn:Linear", overrides=["in_features=3", "out_features=4"]).name
    'Linear'
    """
    values = parse_overrides(overrides)
    if text.endswith(".json") or Path(text).is_dir():
        return transformers_models.config_target(text, values)
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise TargetError(f"{text!r} is not a target{_remedy(text)}")
    if module == "transformers":
        return transformers_models.class_target(text, name, values)
    return _callable_target(text, module, name, values)


def _remedy(text: str) -> str:
    if text.isidentifier() and text[0].isupper():
        return f"; did you mean transformers:{text}?"
    if "/" in text:
        return ": no such folder, and nothing is downloaded; give the path of its config.json"
    return f": give {FORMS}"


def _callable_target(text: str, module: str, name: str, values: dict[str, Any]) -> Target:
    found = _attribute(_imported(text, module), module, name)
    if isinstance(found, nn.Module):
        raise TargetError(f"{text} is a module already built; name a function or class that builds")
    if not callable(found):
        raise TargetError(f"{text} is a {type(found).__name__}, which cannot be called")
    if _is_pretrained_class(found):
        return transformers_models.model_target(text, found, values)
    _check_arguments(name, found, values)

    def construct() -> Any:
        with _importable_here():
            return found(**values)

    return Target(text, name, construct)


class _importable_here(Restoring):
    """Context in which the current directory is first on ``sys.path``, as for ``python -m``."""

    _here: str | None = None

    def change(self) -> None:
        here = os.getcwd()
        uninterrupted([partial(sys.path.insert, 0, here), partial(setattr, self, "_here", here)])

    def restore(self) -> None:
        here, self._here = self._here, None
        if here in sys.path:
            sys.path.remove(here)


def _imported(text: str, module: str) -> Any:
    if module.endswith(".py"):
        dotted = ".".join(Path(module).with_suffix("").parts)
        raise TargetError(f"{module!r} is a file, not a module; try {dotted}:{text.split(':')[1]}")
    try:
        with _importable_here():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise TargetError(
                f"there is no module {error.name!r} in the current directory or installed"
            ) from error
        raise TargetError(f"{module} could not be imported: {one_line(error)}") from error
    except (Exception, SystemExit) as error:  # a script without a __main__ guard exits
        raise TargetError(f"{module} could not be imported: {one_line(error)}") from error


def _attribute(found: Any, module: str, name: str) -> Any:
    where = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            hint = did_you_mean(part, dir(found))
            raise TargetError(f"{where} has no {part!r}{hint}") from error
        where = f"{where}.{part}"
    return found


def _is_pretrained_class(found: Any) -> bool:
    """Whether it is a transformers model class; if it is, transformers has been imported."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(found, type):
        return False
    return issubclass(found, transformers.PreTrainedModel)


def _check_arguments(name: str, function: Callable[..., Any], values: dict[str, Any]) -> None:
    """Refuse overrides that are not arguments, and arguments without a value or a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # some builtins have none: the call itself reports
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for key in values:
            if key not in named:
                raise TargetError(f"{name} takes no argument {key!r}{did_you_mean(key, named)}")
    missing = [key for key, p in named.items() if p.default is p.empty and key not in values]
    if missing:
        needs = " ".join(f"--config {key}=..." for key in missing)
        raise TargetError(f"{name} needs more arguments: {needs}")
