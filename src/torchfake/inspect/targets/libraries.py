"""TARGETs of other libraries: models of timm, torchvision and diffusers by name, and directories of
diffusers.

Input: a name or a directory, and overrides. Output: a Target. Invariant: no weights are downloaded,
and no code of a checkpoint runs; the library's own code does.
"""

from __future__ import annotations

import importlib
import inspect
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from torchfake.errors import MissingExtraError, TargetError, did_you_mean
from torchfake.inspect.records.messages import import_refused
from torchfake.inspect.targets import transformers_models
from torchfake.inspect.targets.imports import importing
from torchfake.inspect.targets.json_files import read_json
from torchfake.inspect.targets.target import Target

LIBRARIES = ("timm", "torchvision", "diffusers")
PIPELINE_FILE = "model_index.json"


def library_target(text: str, library: str, name: str, values: dict[str, Any]) -> Target:
    """The target for ``timm:NAME``, ``torchvision:NAME`` or ``diffusers:CLASS``."""
    found = _import(library, text)
    if library == "timm":
        _check_name(text, name, found.list_models(), "timm")
        make = partial(found.create_model, name, pretrained=False, **values)
        return Target(text, name, make)
    if library == "torchvision":
        return _torchvision_target(text, name, values, found)
    return _diffusers_target(text, name, values, found)


def diffusers_directory(text: str, values: dict[str, Any]) -> Target:
    """The target for a directory that diffusers has saved: all models of a pipeline, or a model."""
    folder = Path(text)
    if (folder / PIPELINE_FILE).exists():
        return _pipeline_target(text, folder, values)
    config = read_json(folder / "config.json")
    return _model_target(text, str(config["_class_name"]), {**config, **values})


def is_diffusers_directory(folder: Path) -> bool:
    """Whether diffusers has saved a pipeline or a model in `folder`."""
    if (folder / PIPELINE_FILE).exists():
        return True
    file = folder / "config.json"
    return file.exists() and isinstance(read_json(file).get("_class_name"), str)


def _import(library: str, text: str) -> Any:
    try:
        with importing():
            return importlib.import_module(library)
    except ImportError as error:
        if error.name == library:
            raise MissingExtraError(f"{text} needs {library}: pip install {library}") from error
        raise import_refused(library, error) from error
    except Exception as error:  # such as a torchvision that was built for another torch
        raise import_refused(library, error) from error


def _check_name(text: str, name: str, known: list[str], where: str) -> None:
    if name not in known:
        raise TargetError(f"{where} has no model {name!r}{did_you_mean(name, known)}")


def _torchvision_target(text: str, name: str, values: dict[str, Any], torchvision: Any) -> Target:
    models = torchvision.models
    _check_name(text, name, models.list_models(), "torchvision")
    builder = models.get_model_builder(name)
    given = {"weights": None, **values}
    if "weights_backbone" in inspect.signature(builder).parameters:  # detectors would download
        given.setdefault("weights_backbone", None)
    return Target(text, name, partial(models.get_model, name, **given))


def _diffusers_target(text: str, name: str, values: dict[str, Any], diffusers: Any) -> Target:
    found = getattr(diffusers, name, None)
    if isinstance(found, type) and issubclass(found, diffusers.DiffusionPipeline):
        raise TargetError(
            f"{name} is a pipeline, and its models depend on its checkpoint: give the directory of "
            "one, or one of its models, such as diffusers:UNet2DConditionModel"
        )
    return _model_target(text, name, values)


def _model_target(text: str, name: str, config: dict[str, Any]) -> Target:
    diffusers = _import("diffusers", text)
    found = getattr(diffusers, name, None)
    if not (isinstance(found, type) and issubclass(found, diffusers.ModelMixin)):
        names = [other for other in dir(diffusers) if not other.endswith("Pipeline")]
        hint = did_you_mean(name, names)
        raise TargetError(f"diffusers {diffusers.__version__} has no model {name!r}{hint}")
    model_class: Any = found
    own = {key for key in config if not key.startswith("_")}
    unknown = own - inspect.signature(model_class.__init__).parameters.keys()
    if unknown and "_class_name" not in config:
        key = min(unknown)
        known = inspect.signature(model_class.__init__).parameters
        raise TargetError(f"{name} has no key {key!r}{did_you_mean(key, list(known))}")
    return Target(text, name, partial(_from_config, model_class, config))


def _from_config(model_class: Any, config: dict[str, Any]) -> Any:
    return model_class.from_config({"_class_name": model_class.__name__, **config})


# Pipelines.


def _pipeline_target(text: str, folder: Path, values: dict[str, Any]) -> Target:
    index = read_json(folder / PIPELINE_FILE)
    parts = {}
    for name, entry in index.items():
        if isinstance(entry, list) and len(entry) == 2 and (folder / name / "config.json").exists():
            chosen = {
                key.removeprefix(f"{name}."): value
                for key, value in values.items()
                if key.startswith(f"{name}.")
            }
            parts[name] = _part(str(folder / name), chosen)
    unknown = [key for key in values if key.partition(".")[0] not in parts]
    if unknown:
        hint = did_you_mean(unknown[0], [f"{name}." for name in parts])
        raise TargetError(f"{text} has no model for {unknown[0]!r}{hint}: write MODEL.KEY=VALUE")
    if not parts:
        raise TargetError(f"{text} has no folder of a model that its {PIPELINE_FILE} names")
    notes = tuple(note for part in parts.values() for note in part.notes)
    return Target(
        text, str(index.get("_class_name", "pipeline")), partial(_models, parts), notes=notes
    )


def _part(text: str, values: dict[str, Any]) -> Target:
    if is_diffusers_directory(Path(text)):
        return diffusers_directory(text, values)
    return transformers_models.config_target(text, values)


def _models(parts: dict[str, Target]) -> nn.ModuleDict:
    return nn.ModuleDict({name: part.construct() for name, part in parts.items()})
