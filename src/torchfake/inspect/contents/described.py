"""The format of weights that a module's config describes, where the module does not have it.

Input: a module, built from a config. Output: the name of the format, and the size of the weights in
it. Invariant: a module whose weights are quantized has no other format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from torchfake.inspect.contents.schemes import method_of, scheme_of_config
from torchfake.inspect.contents.weights import Weights, weights_by


def described_format(module: nn.Module) -> str:
    """The format in the ``quantization_config`` of a module that is built without it: ``fp8``, or
    ``""``.
    """
    config = _config_of(module)
    if not config or _is_quantized(module):
        return ""
    found = scheme_of_config(config)
    return method_of(config) or "format" if found is None else found[0]


def described_weights(module: nn.Module) -> Weights | None:
    """The weights in that format; None if there is none, or its size is not known."""
    found = scheme_of_config(_config_of(module)) if described_format(module) else None
    return None if found is None else weights_by(module, *found, {})


def _config_of(module: nn.Module) -> Mapping[str, Any]:
    found: Any = getattr(getattr(module, "config", None), "quantization_config", None) or {}
    config: Mapping[str, Any] = found if isinstance(found, Mapping) else found.to_dict()
    return {} if config.get("dequantize") else config


def _is_quantized(module: nn.Module) -> bool:
    """Whether transformers has quantized a module, or weights have fewer bits than a float."""
    if getattr(module, "hf_quantizer", None) is not None:
        return True
    return any(not p.is_floating_point() or p.dtype.itemsize < 2 for p in module.parameters())
