"""How many positions a model has for the tokens of a text.

Input: a module. Output: :class:`Positions`, from its config and from its tables of positions.
Invariant: the module is not run, so whether it runs past its positions is not known here: with a
table of learned positions it cannot, with rotary positions it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from torchfake._files.transformers_checkpoints import is_transformers_model

_KEYS = (
    "max_position_embeddings", "max_target_positions", "max_text_positions",
    "max_decoder_position_embeddings",
)  # fmt: skip


class Positions(NamedTuple):
    """The number of positions of a model."""

    number: int
    key: str  # the entry of the config of its text decoder that says so


def positions_of(module: Any) -> Positions | None:
    """The positions of a transformers model; None if its config gives none.

    Sequences of a model without text, such as the patches of an image, have no such limit.
    """
    if not is_transformers_model(module):
        return None
    config = module.config.get_text_config(decoder=True)
    for key in _KEYS:
        number = getattr(config, key, None)
        if isinstance(number, int) and number > 0:
            name = getattr(config, "attribute_map", {}).get(key, key)
            return Positions(min((number, *table_sizes(module))), name)
    return None


def too_long(error: Exception, module: nn.Module, tokens: int, remedy: str) -> str:
    """Why a model has failed, if it has learned a table of positions and the text is longer: its
    lookup is out of range, or it expands a buffer that is as long as the table; otherwise "".

    Args:
        error: what the model has raised.
        module: the model.
        tokens: the tokens of the text.
        remedy: what to give instead; "{}" stands for the positions.
    """
    positions = positions_of(module)
    if positions is None or tokens <= positions.number:
        return ""
    is_lookup = isinstance(error, IndexError) or "out of bounds" in str(error)
    if not is_lookup and str(positions.number) not in str(error):
        return ""
    return (
        f"{type(module).__name__} has learned {positions.number:,} positions, and does not run on "
        f"{tokens:,} tokens: {remedy.format(positions.number)}, or a model with a larger "
        f"{positions.key} in its config"
    )


def table_sizes(module: nn.Module) -> Iterator[int]:
    """The usable positions of tables of positions that begin after their padding index."""
    for name, child in module.named_modules():
        if isinstance(child, nn.Embedding) and "position" in name.rpartition(".")[2]:
            if child.padding_idx is not None:
                yield child.num_embeddings - child.padding_idx - 1
