"""Resolves a TARGET, a string of the command line, to a function that builds a model.

Input: a string of one of the :data:`FORMS`, and overrides. Output: a :class:`Target`, not built.
Invariant: an error in the string or in an override is a TargetError of one line that names the
remedy.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchfake._core.arguments import check_path, check_strings
from torchfake._torch.contexts import Restoring, uninterrupted
from torchfake.errors import TargetError, did_you_mean
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.targets import transformers_models
from torchfake.inspect.targets.hub import hub_config, hub_tensors, is_hub_id
from torchfake.inspect.targets.libraries import (
    LIBRARIES,
    diffusers_directory,
    is_diffusers_directory,
    library_target,
)
from torchfake.inspect.targets.options import parse_overrides
from torchfake.inspect.targets.saved_tensors import saved_tensors_in
from torchfake.inspect.targets.target import Target
from torchfake.observe import FakeCopies

FORMS = (
    "transformers:ClassName, the path of a config.json or of its folder, a Hugging Face Hub id "
    "such as organisation/name, timm:NAME, torchvision:NAME, diffusers:CLASS, package.module:NAME "
    "or path/to/file.py:NAME of a class, a function or a module"
)


def resolve(text: str, *, overrides: Sequence[str] = ()) -> Target:
    """Resolve the text of a TARGET.

    Args:
        text: a TARGET.
        overrides: changes of the config or of the callable's arguments, each as ``key=value``.

    Raises:
        TypeError: if an argument is of another type.
        TargetError: if the text names nothing that can be built, or an override is invalid.
        MissingExtraError: if the target needs a library that is not installed.

    >>> resolve("torch.nn:Linear", overrides=["in_features=3", "out_features=4"]).name
    'Linear'
    """
    _check_not_built(text)
    check_path(text, "target")
    check_strings(overrides, "overrides")
    text, values = os.fspath(text), parse_overrides(overrides)
    if Path(text).is_dir():
        return _directory_target(text, values)
    if text.endswith(".json"):
        return transformers_models.config_target(text, values)
    module, colon, name = text.rpartition(":")
    module = module.removesuffix(":")  # file.py::Name, as pytest writes it
    if Path(text).is_file() and text.endswith(".py"):
        raise TargetError(f"{text} is a file: name the model in it{_names_in(Path(text))}")
    if not colon and is_hub_id(text) and not text.endswith(_WEIGHT_FILES):
        config = hub_config(text)
        target = transformers_models.config_target(str(config), values)
        return replace(target, text=text, saved=hub_tensors(text, config))
    if not colon or not module or not name:
        raise TargetError(f"{text!r} is not a target{_remedy(text)}")
    if module == "transformers":
        return transformers_models.class_target(text, name, values)
    if module in LIBRARIES:
        return library_target(text, module, name, values)
    return _callable_target(text, module, name, values)


def _check_not_built(given: object) -> None:
    """Refuse a model in place of a name: what is asked for builds models of its own."""
    if isinstance(given, nn.Module):
        kind = type(given)
        package = kind.__module__.partition(".")[0]
        module = package if package == "transformers" else kind.__module__
        raise TypeError(
            f"target is a {kind.__name__}: give a name that it can be built from, "
            f"'{module}:{kind.__name__}', or the path of a folder with its config"
        )


def _directory_target(text: str, values: dict[str, Any]) -> Target:
    """The target for a directory with a config, with weights, or with both."""
    folder = Path(text)
    has_weights = any(file.name.endswith(_WEIGHTS) for file in folder.iterdir())
    saved = partial(saved_tensors_in, text) if has_weights else None
    if is_diffusers_directory(folder):
        return replace(diffusers_directory(text, values), saved=saved)
    if has_weights and not (folder / "config.json").exists():
        if values:
            raise TargetError(
                f"{text} has no config.json, so {next(iter(values))!r} changes nothing"
            )
        return Target(text, "the checkpoint", nn.Module, saved=saved)
    return replace(transformers_models.config_target(text, values), saved=saved)


_WEIGHTS = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")


def _remedy(text: str) -> str:
    if text.isidentifier() and text[0].isupper():
        return f"; did you mean transformers:{text}? A class of your own is path/to/file.py:{text}"
    if text.endswith(_WEIGHT_FILES):
        if Path(text).is_file():
            return f": it is a weights file; give its folder, {Path(text).parent}"
        return ": there is no such file; for weights give their folder"
    if _DOTTED.fullmatch(text):
        module, _, name = text.rpartition(".")
        return f"; did you mean {module}:{name}?"
    if "/" in text:
        return ": no such folder or file; give the path of a config.json or of its folder"
    if re.fullmatch(r"[\w.-]+", text):
        return _remedy_of_name(text)
    return f": give {FORMS}"


def _remedy_of_name(text: str) -> str:
    """The advice for a bare name: the transformers class of that model type, or other TARGETs."""
    hub = f"organisation/{text} for a model on the Hugging Face Hub"
    if name := _class_of_type(text):
        return f"; did you mean transformers:{name}? Or write {hub}"
    given = f"write {hub}, timm:{text} or torchvision:{text}, or give {FORMS}"
    return f": there is no such file or folder; {given}"


def _class_of_type(text: str) -> str:
    """``GPT2LMHeadModel`` for ``gpt2``: a class with a head, which can be trained too, if there is
    one. From the source files: importing transformers takes seconds.
    """
    kind = re.sub(r"\W", "_", text.lower())
    spec = importlib.util.find_spec("transformers")
    for folder in spec.submodule_search_locations or () if spec else ():
        file = Path(folder) / "models" / kind / f"modeling_{kind}.py"
        if file.is_file():
            named = re.findall(r"^class (\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
            ends = (n for end in _ENDS for n in named if n.endswith(end))
            return next((n for n in ends if not n.endswith("PreTrainedModel")), "")
    return ""


_ENDS = (
    "ForMaskedLM", "ForConditionalGeneration", "ForCausalLM", "LMHeadModel",
    "ForImageClassification", "ForCTC", "Model",
)  # fmt: skip
"""Ends of the names of classes that are suggested for a model type, in this order."""

_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
_DOTTED = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)*\.[A-Z]\w*")


def _names_in(file: Path) -> str:
    """The advice ``: net.py:Net, ...`` with the names that a file defines; the file is not run."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return f", such as {file}:Net"
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = [n.name for kind in kinds for n in body if isinstance(n, kind)]
    public = [name for name in names if not name.startswith("_")]
    return f": {', '.join(f'{file}:{name}' for name in public[:5])}" if public else ""


def _instance_target(text: str, name: str, built: nn.Module, values: dict[str, Any]) -> Target:
    """The target for an existing module, which builds a fake copy of it."""
    if values:
        key = next(iter(values))
        raise TargetError(
            f"{text} is already built, so --config {key}=... changes nothing: name its class, or "
            "a function that builds it"
        )

    def construct() -> Any:
        return FakeCopies(torch.get_default_device(), known=True).of_module(built)

    note = f"{name} is an instance, which was built, with its values, when its file was imported"
    return Target(text, name, construct, notes=(note,), is_built=True)


def _callable_target(text: str, module: str, name: str, values: dict[str, Any]) -> Target:
    folder = str(Path(module).parent) if module.endswith(".py") else os.getcwd()
    imported = _imported_file(module) if module.endswith(".py") else _imported(module)
    found = _attribute(imported, module, name)
    if isinstance(found, nn.Module):
        return _instance_target(text, name, found, values)
    if not callable(found):
        raise TargetError(
            f"{text} is of type {type(found).__name__}: name a class, a function or a module"
        )
    if _is_pretrained_class(found):
        return transformers_models.model_target(text, found, values)
    _check_arguments(name, found, values)

    def construct() -> Any:
        with _importable_from(folder):
            return found(**values)

    return Target(text, name, construct)


class _importable_from(Restoring):
    """Context in which a directory is first on ``sys.path``: the current directory, as with
    ``python -m``, or the directory of a file, as with ``python file.py``.
    """

    _here: str | None = None

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)

    def change(self) -> None:
        here = self._folder
        uninterrupted([partial(sys.path.insert, 0, here), partial(setattr, self, "_here", here)])

    def restore(self) -> None:
        here, self._here = self._here, None
        if here in sys.path:
            sys.path.remove(here)


def _imported_file(path: str) -> Any:
    """Import a file as a module, under a name that no import statement uses."""
    if not Path(path).is_file():
        raise TargetError(f"there is no file {path!r}")
    name = f"torchfake_target_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with _importable_from(str(Path(path).parent)):
            sys.modules[name] = module  # dataclasses look up their module
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script without a __main__ guard exits
        sys.modules.pop(name, None)
        raise TargetError(f"{path} could not be imported: {one_line(error)}") from error
    return module


def _imported(module: str) -> Any:
    try:
        with _importable_from(os.getcwd()):
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
    """Whether an object is a transformers model class, without importing transformers."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(found, type):
        return False
    return issubclass(found, transformers.PreTrainedModel)


def _check_arguments(name: str, function: Callable[..., Any], values: dict[str, Any]) -> None:
    """Refuse overrides that are not arguments, and arguments without a value or a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # some builtins have no signature: the call reports errors
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
