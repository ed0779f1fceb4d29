"""Tables of sines of transformers: the same bits in a mode, and in a fraction of the time."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest
import torch

from torchfake import (
    deferred_init,
    deferred_mode,
    fake_mode,
    materialize_module,
    materialize_tensor,
)
from torchfake._patches.sources import position_tables

FUNCTIONS = sorted(position_tables._FUNCTIONS.items())
SIZES = [(1, 1), (1, 2), (5, 8), (7, 6), (64, 32), (130, 100)]


def table(module: str, path: str, size: tuple[int, int]) -> torch.Tensor:
    """What the function makes of a table with this size."""
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    if classes:
        layer = getattr(owner, classes[0])(*size)
        return layer.create_weight()  # type: ignore[no-any-return]
    function = getattr(owner, name)
    if name == "get_sinusoid_encoding_table":
        return function(*size)  # type: ignore[no-any-return]
    return function(*size, torch.empty(size))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("module", "path"), FUNCTIONS, ids=[m for m, _ in FUNCTIONS])
def test_bits_of_eager(module: str, path: str) -> None:
    for size in SIZES:
        eager = table(module, path, size)
        with fake_mode():
            fake = table(module, path, size)
        assert (fake.shape, fake.dtype, fake.stride()) == (eager.shape, eager.dtype, eager.stride())
        with deferred_mode():
            deferred = table(module, path, size)
        assert torch.equal(materialize_tensor(deferred), eager)


@pytest.mark.parametrize(("module", "path"), FUNCTIONS, ids=[m for m, _ in FUNCTIONS])
@pytest.mark.parametrize("size", [(0, 4), (4, 0), (0, 0)])
def test_tables_without_rows_or_columns(module: str, path: str, size: tuple[int, int]) -> None:
    def outcome() -> Any:
        try:
            return table(module, path, size).shape
        except Exception as error:
            return type(error)

    eager = outcome()
    with fake_mode():
        assert outcome() == eager


@pytest.mark.parametrize(("module", "path"), FUNCTIONS, ids=[m for m, _ in FUNCTIONS])
def test_they_have_the_known_form(module: str, path: str) -> None:
    """In another transformers they may not: their text decides, and they run as they are."""
    assert importlib.import_module(module)
    (patch,) = position_tables.patches_of(module)
    original = getattr(patch.owner, patch.name)
    assert position_tables.is_known_form(original)
    with fake_mode():
        assert getattr(patch.owner, patch.name) is not original
        assert getattr(patch.owner, patch.name).__wrapped__ is original
    assert getattr(patch.owner, patch.name) is original


def test_another_form_is_left_alone() -> None:
    def of_another_base(n_pos: int, dim: int) -> Any:
        return [[pos / 2 ** (j // 2) for j in range(dim)] for pos in range(n_pos)]

    assert not position_tables.is_known_form(of_another_base)
    assert not position_tables.is_known_form(len)
    made = position_tables._by_columns(of_another_base)
    assert made is of_another_base


IN_A_MODE = """
import sys
import torchfake
with torchfake.fake_mode():
    from transformers.models.marian import modeling_marian
    create = modeling_marian.MarianSinusoidalPositionalEmbedding.create_weight
    assert create.__wrapped__, "replaced when it was imported"
assert not hasattr(modeling_marian.MarianSinusoidalPositionalEmbedding.create_weight, "__wrapped__")
"""


def test_a_module_that_is_imported_in_a_mode() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", IN_A_MODE], check=True, timeout=300)


def test_models_are_as_in_eager() -> None:
    from transformers import MarianConfig, MarianModel

    sizes = {"d_model": 16, "vocab_size": 50, "max_position_embeddings": 40, "pad_token_id": 49}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    config = MarianConfig(
        **sizes, **layers, decoder_attention_heads=2, decoder_start_token_id=49,
        encoder_ffn_dim=8, decoder_ffn_dim=8,
    )  # fmt: skip
    eager = MarianModel(config).encoder.embed_positions.weight
    deferred = deferred_init(MarianModel, config)
    materialize_module(deferred)
    assert torch.equal(deferred.encoder.embed_positions.weight, eager)
