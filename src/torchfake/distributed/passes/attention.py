"""Attention as an engine runs it: by a kernel that stores no scores.

Input: a model of transformers. Output: the model, set to torch's fused attention where transformers
would not choose it. Invariant: what is multiplied, and what the cache holds, stays the same.
"""

from __future__ import annotations

from typing import Any

NOT_FUSED = (
    "attention or states run as transformers' own code does, which an engine fuses: activations "
    "and times are upper bounds"
)
"""The note on a model whose scores or states are stored in the run."""


def fuse_attention(module: Any) -> None:
    """Let a model that transformers runs with eager attention, such as one with attention sinks,
    run with a fused kernel.
    """
    text = module.config.get_text_config()
    has_softcap = getattr(text, "attn_logit_softcapping", None) is not None  # torch's has none
    if module.config._attn_implementation == "eager" and _looks_up(module) and not has_softcap:
        module.config._attn_implementation = "sdpa"


def is_fused(module: Any) -> bool:
    """Whether a model runs with a fused kernel of attention."""
    own = getattr(module.config, "_attn_implementation", "eager")
    return own != "eager" and _looks_up(module)


def _looks_up(module: Any) -> bool:
    """Whether a model looks its attention up by the name in its config."""
    return bool(getattr(module, "_supports_attention_backend", False))
