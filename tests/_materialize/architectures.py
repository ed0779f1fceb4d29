"""Architectures of transformers at a size that eager builds in a moment.

Enters: the name of an architecture. Leaves: its configuration with fewer layers, a small vocabulary
and narrow layers, as far as the architecture takes that.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import transformers

from torchfake import fake_mode

MAX_PARAMETERS = 40_000_000

_FEW_LAYERS = {"layers": 2, "n_layer": 2, "num_blocks": 2, "depth": 2}
_SMALL_VOCABULARY = {"vocab": 300, "token_id": 299, "token_index": 299}
_NARROW = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "embed_dim": 64, "dim": 64, "heads": 4,
    "intermediate_size": 96, "ffn_dim": 96, "d_ff": 96,
}  # fmt: skip
_TIERS: list[dict[str, int]] = [
    {**_FEW_LAYERS, **_SMALL_VOCABULARY, **_NARROW},
    {**_FEW_LAYERS, **_SMALL_VOCABULARY, "intermediate_size": 96, "ffn_dim": 96, "d_ff": 96},
    {**_FEW_LAYERS, **_SMALL_VOCABULARY},
    _SMALL_VOCABULARY,
    {},
]
"""The smallest first: some architectures have sizes that must agree, and refuse it."""


def _shrink(config: Any, limits: dict[str, int]) -> None:
    num_layers = getattr(config, "num_hidden_layers", None)
    for name, value in list(vars(config).items()):
        if type(value) is list and len(value) == num_layers:  # one item for each layer
            setattr(config, name, value[: limits.get("layers", num_layers)])
        if isinstance(value, transformers.PretrainedConfig):
            _shrink(value, limits)
        elif type(value) is int and "kernel" not in name:
            limit = min((n for part, n in limits.items() if part in name), default=value)
            setattr(config, name, min(value, limit))


def _complete(config: Any) -> None:
    """Sizes that have no default, or that do not agree any more with those that were reduced."""
    for value in list(vars(config).values()):
        if isinstance(value, transformers.PretrainedConfig):
            _complete(value)
    own = vars(config)
    hidden, heads = own.get("hidden_size"), own.get("num_attention_heads")
    wanted = {
        "vocab_size": 300, "prediction_length": 4, "context_length": 4,
        "num_key_value_heads": heads, "pad_token_id": 1,
        "head_dim": hidden // heads if hidden and heads else None,
    }  # fmt: skip
    for name, value in wanted.items():
        if name in own and own[name] is None:
            setattr(config, name, value)
    if "attn_layer_offset" in own:
        config.attn_layer_offset, config.attn_layer_period = 1, 2
    if own.get("stage_names") and "num_hidden_layers" in own:
        config.stage_names = ["stem", *(f"stage{i + 1}" for i in range(config.num_hidden_layers))]
        config._out_features, config._out_indices = config.stage_names[-1:], [-1]


@cache
def small_config(name: str, max_parameters: int = MAX_PARAMETERS, *, saved: bool = False) -> Any:
    """None if none of the sizes above is small enough and taken; by the model that is built from
    it, and if `saved` by what reads the configuration from a file, which checks more.
    """
    for is_completed, limits in itertools.product((False, True), _TIERS):
        try:
            config = transformers.AutoConfig.for_model(name)
            _shrink(config, limits)
            if is_completed:
                _complete(config)
            if saved:
                type(config).from_dict(config.to_dict())
            with fake_mode():
                model = transformers.AutoModel.from_config(copy.deepcopy(config))
        except Exception:  # whatever a constructor raises for sizes that do not agree
            continue
        if sum(p.numel() for p in model.parameters()) <= max_parameters:
            return config
    return None


def builder(name: str) -> Callable[[], Any]:
    config = small_config(name)
    assert config is not None, f"{name} is not to be had small"
    return lambda: transformers.AutoModel.from_config(copy.deepcopy(config))
