"""TARGETs of transformers: model classes with a default config, and config.json files.

Input: a class, the name of a class, or a path; overrides. Output: a Target. Invariant: nothing is
downloaded, and no code from a checkpoint runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchfake._torch.contexts import Setting
from torchfake.errors import MissingExtraError, TargetError, did_you_mean
from torchfake.inspect.records.messages import import_refused
from torchfake.inspect.targets.imports import importing
from torchfake.inspect.targets.json_files import read_json
from torchfake.inspect.targets.target import Target
from torchfake.inspect.targets.transformers_configs import config_from

_NOT_MODELS = ("Config", "Tokenizer", "TokenizerFast", "Processor", "Extractor", "Output")
"""Suffixes of class names that are not suggested for a misspelt model class."""

DEFAULT_CONFIG = "the default config of the class: the path of a config.json names another size"
"""The note about a class of which no size is named."""

BUILT_UNQUANTIZED = "built unquantized: the tree is that before the config's quantization_config"
"""The note about a config that describes quantized weights."""


def class_target(text: str, name: str, values: dict[str, Any]) -> Target:
    """The target for ``transformers:ClassName``: the class with its config's defaults."""
    transformers = _transformers()
    found = _lookup(transformers, name)
    if found is None:
        names = _model_names(transformers)
        hint = did_you_mean(name, names) or did_you_mean(f"{name}Model", names)
        raise TargetError(f"transformers {transformers.__version__} has no {name!r}{hint}")
    return model_target(text, found, values)


def model_target(text: str, model_class: Any, values: dict[str, Any]) -> Target:
    """The target for a subclass of PreTrainedModel, with its config's defaults."""
    transformers = _transformers()
    name = getattr(model_class, "__name__", str(model_class))
    if hasattr(model_class, "_model_mapping"):
        raise TargetError(
            f"{name} chooses a class by its config and has no default; name a model class, "
            "such as transformers:LlamaForCausalLM, or give the path of a config.json"
        )
    if not _is_model_class(transformers, model_class):
        stem = name.removesuffix("Config").removesuffix("Tokenizer")
        hint = did_you_mean(f"{stem}Model", _model_names(transformers) - {name})
        raise TargetError(f"{name} is not a model class of transformers{hint}")
    config_class = model_class.config_class
    if config_class is None:
        raise TargetError(f"{name} is an abstract class: it has no config of its own")
    config = config_from(name, config_class, {}, values)
    notes = () if values else (DEFAULT_CONFIG,)
    return target_of(text, name, config, model_class, *notes)


def config_target(text: str, values: dict[str, Any]) -> Target:
    """The target for a ``config.json`` or its folder: the class that ``architectures`` names."""
    transformers, config = _transformers(), _config(text, values)
    architectures = config.architectures
    for name in architectures if isinstance(architectures, (list, tuple)) else ():
        model_class: Any = _lookup(transformers, name) if isinstance(name, str) else None
        if _is_model_class(transformers, model_class):
            return target_of(text, name, config, model_class)
    if type(config) not in transformers.MODEL_MAPPING:
        raise TargetError(f"{text}: AutoModel knows no class for {type(config).__name__}")
    note = "built as AutoModel does: `architectures` names no class of transformers"
    return target_of(text, "AutoModel", config, partial(_auto_model, transformers), note)


def read_config(text: str) -> dict[str, Any]:
    """The config in a ``config.json`` or its folder, with the defaults of its class; as it is
    written, if transformers does not know it.

    Raises:
        TargetError: if there is none.
    """
    raw = read_json(Path(text))
    try:
        found: dict[str, Any] = _config(text, {}).to_dict()
    except (MissingExtraError, TargetError):
        return raw
    return found


def _config(text: str, values: dict[str, Any]) -> Any:
    raw = read_json(Path(text))
    transformers = _transformers()
    with importing():
        config_class = _config_class(transformers, text, raw)
    return config_from(text, config_class, raw, values)


def _auto_model(transformers: Any, config: Any) -> Any:
    return transformers.AutoModel.from_config(config, trust_remote_code=False)


def target_of(text: str, name: str, config: Any, make: Callable[[Any], Any], *notes: str) -> Target:
    """A target that builds a model from a config, which determines its dtype and notes. Each model
    has a config of its own, since a run may change it.
    """

    def construct() -> Any:
        with _offline():
            return make(copy.deepcopy(config))

    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else None
    quantization = getattr(config, "quantization_config", None)
    if quantization:
        notes += (BUILT_UNQUANTIZED,)
        quantization = quantization if isinstance(quantization, dict) else quantization.to_dict()
    return Target(text, name, construct, dtype, notes, quantization or None)


def _transformers() -> Any:
    try:
        with importing():
            import transformers
    except ImportError as error:
        if error.name == "transformers":
            raise MissingExtraError(
                'this target needs transformers: pip install "torchfake[hf]"'
            ) from error
        raise import_refused("transformers", error) from error
    return transformers


def _offline() -> Setting:
    """Context without downloads, because backbones from timm would fetch pretrained weights."""
    from huggingface_hub import constants

    name = "HF_HUB_OFFLINE"
    return Setting(partial(getattr, constants, name), partial(setattr, constants, name), True)


def _lookup(transformers: Any, name: str) -> Any:
    """The attribute of transformers with this name, whose module is imported; or None."""
    try:
        with importing():
            return getattr(transformers, name, None)
    except Exception as error:
        raise import_refused(name, error) from error


def _is_model_class(transformers: Any, found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)


def _model_names(transformers: Any) -> set[str]:
    return {n for n in dir(transformers) if n[0].isupper() and not n.endswith(_NOT_MODELS)}


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."


def _config_class(transformers: Any, text: str, raw: dict[str, Any]) -> Any:
    model_type = raw.get("model_type")
    if model_type is None:
        raise TargetError(f"{text} has no `model_type`, so it is not a transformers config")
    known = transformers.CONFIG_MAPPING
    if not isinstance(model_type, str):
        raise TargetError(f"{text}: `model_type` is a {type(model_type).__name__}, not a name")
    if model_type not in known:
        own = " and code in the checkpoint is not run" if "auto_map" in raw else ""
        raise TargetError(
            f"{text}: transformers {transformers.__version__} does not know model_type "
            f"{_shortened(model_type)!r}{own}{did_you_mean(model_type, known)}"
        )
    return known[model_type]
