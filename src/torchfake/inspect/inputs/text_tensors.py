"""Tensors of text: token ids, masks, positions, and the token ids of sound codecs.

Input: sizes. Output: integer tensors. Invariant: the values of small tensors are known, because
models branch on them.
"""

from __future__ import annotations

import torch

from torchfake.errors import InputsError
from torchfake.inspect.inputs.constant_tensors import INT, Factory, readable_ones
from torchfake.inspect.inputs.sizes import Sizes


def token_ids(sizes: Sizes) -> torch.Tensor:
    """Token ids: one plain token repeated, then the end-of-text token."""
    ids = torch.full(sizes.text_shape, sizes.plain_token)
    ids[..., -1] = sizes.end_token
    return ids


def token_ids_after_image(sizes: Sizes) -> torch.Tensor:
    """Token ids that begin with as many placeholder tokens as an image needs.

    Raises:
        InputsError: if the text is too short for the placeholders.
    """
    ids, count = token_ids(sizes), sizes.config_int("num_query_tokens", default=0)
    placeholder = sizes.config_value("image_token_id", "image_token_index")
    if isinstance(placeholder, int):
        _check_length(sizes, count)
        ids[:, :count] = placeholder
    return ids


def image_token_mask(sizes: Sizes) -> torch.Tensor:
    """A mask of the tokens that stand for an image: the first ones.

    Raises:
        InputsError: if the text is too short for the image's tokens.
    """
    count = sizes.config_int("latent_query_num", default=1)
    _check_length(sizes, count)
    return (torch.arange(sizes.seq) < count).to(INT).repeat(sizes.batch, 1)


def _check_length(sizes: Sizes, num_image_tokens: int) -> None:
    if sizes.seq <= num_image_tokens:
        raise InputsError(
            f"an image takes {num_image_tokens} tokens of {type(sizes.model).__name__}'s text: seq "
            f"must be {num_image_tokens + 1} or more, and is {sizes.seq}"
        )


def attention_mask(sizes: Sizes) -> torch.Tensor | None:
    """An attention mask of ones."""
    return readable_ones(*sizes.text_shape)


def positions(sizes: Sizes) -> torch.Tensor:
    """Positions of tokens, counted from 0."""
    return torch.arange(sizes.seq).repeat(sizes.batch, 1)


def codebook_ids(key: str, *, additional: int = 0) -> Factory:
    """A factory of several token ids per position: one for each codebook, whose number the config
    has under `key`, and `additional` ones.
    """

    def make(sizes: Sizes) -> torch.Tensor:
        count = sizes.config_int(key, of="decoder", default=1) + additional
        return torch.full((sizes.batch, sizes.seq, count), sizes.plain_token)

    return make


def codebook_rows(sizes: Sizes) -> torch.Tensor:
    """Token ids of sound, with the codebooks of each example along the batch dimension."""
    num_rows = sizes.batch * sizes.config_int("num_codebooks", of="decoder", default=1)
    return torch.full((num_rows, sizes.seq), sizes.plain_token)
