"""Adds PEFT adapters to a module of fakes.

Input: a fake copy or a module, and a PEFT config. Output: it, with the adapters. Invariant: the
config and the user's module are not changed.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from torchfake._files.transformers_checkpoints import is_transformers_model
from torchfake.errors import InputsError, MissingExtraError, did_you_mean
from torchfake.inspect.copies.workload import FakeCopy
from torchfake.inspect.records.messages import one_line


def with_adapters(fake_copy: FakeCopy, config: Any) -> FakeCopy:
    """The fake copy with the adapters of a config, as ``peft.get_peft_model`` adds them.

    Raises:
        InputsError: if `config` is not a PEFT config, or does not fit the module.
        MissingExtraError: if PEFT is not installed.
    """
    if not any(cls.__module__.split(".")[0] == "peft" for cls in type(config).__mro__):
        raise InputsError(f"peft= is a {type(config).__name__}: give a config, such as LoraConfig")
    if not isinstance(config, _peft("peft=").PeftConfig):
        raise InputsError(f"peft= is a {type(config).__name__}: give a config, such as LoraConfig")
    with fake_copy.mode():
        module = add_adapters(fake_copy.module, config)
    return replace(fake_copy, module=module)


def add_adapters(module: nn.Module, config: Any) -> nn.Module:
    """Add the adapters of a config to `module` in place, in the active mode."""
    try:
        adapted: nn.Module = _peft("peft=").get_peft_model(module, copy.deepcopy(config))
    except (ValueError, TypeError, NotImplementedError) as error:
        name = type(module).__name__
        raise InputsError(f"{name} does not take these adapters: {one_line(error)}") from error
    return adapted


def lora_config(module: nn.Module, rank: int, layers: Sequence[str] = ()) -> Any:
    """The config of LoRA adapters of a rank, with the defaults of PEFT otherwise.

    Args:
        module: the module that is to have them.
        rank: the rank of the adapters.
        layers: the ends of the names of the layers that have adapters; by default all linear
            layers, of a transformers model without the output layer.

    Raises:
        InputsError: if `module` has no such layer.
        MissingExtraError: if PEFT is not installed.
    """
    peft, named = _peft("--lora"), dict(module.named_modules())
    for layer in layers:
        if not any(name == layer or name.endswith(f".{layer}") for name in named):
            known = {name.rpartition(".")[2] for name in _linear(named)}
            raise InputsError(
                f"{type(module).__name__} has no layer {layer!r}{did_you_mean(layer, known)}; its "
                f"linear layers: {', '.join(sorted(known)) or 'none'}"
            )
    if layers:
        return peft.LoraConfig(r=rank, target_modules=list(layers))
    if is_transformers_model(module):
        return peft.LoraConfig(r=rank, target_modules="all-linear")
    return peft.LoraConfig(r=rank, target_modules=_linear(named))


def adapters_text(config: Any) -> str:
    """A description of adapters: their kind, rank and layers."""
    kind = type(config).__name__.removesuffix("Config")
    rank, layers = getattr(config, "r", None), getattr(config, "target_modules", None)
    text = kind if rank is None else f"{kind}, rank {rank}"
    if not layers:
        return text
    if isinstance(layers, str):
        named = "all linear layers" if layers == "all-linear" else layers
    else:
        ends = sorted({layer.rpartition(".")[2] for layer in layers})
        named = ", ".join(ends) if len(ends) < 12 else f"{len(layers)} layers"
    return f"{text}, on {named}"


def _linear(named: Mapping[str, nn.Module]) -> list[str]:
    """The names of linear layers: ``nn.Linear``, and the ``Conv1D`` of GPT-2."""
    return [
        name
        for name, module in named.items()
        if name and (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")
    ]


def _peft(asked_by: str) -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise MissingExtraError(f"{asked_by} needs the library: pip install peft") from error


def changes_to_dict(weights: str | None, peft: Any) -> dict[str, Any]:
    """The format of quantized weights and the adapters of a step, as a dict for JSON."""
    found = {} if weights is None else {"weights": weights}
    return found if peft is None else {**found, "adapters": adapters_text(peft)}
