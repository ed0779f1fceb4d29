"""Names of tensors: what no reader would accept is refused, what one accepts is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from tests._files.conftest import MODELS, seeded, state_bits, values_of
from torchfake import deferred_init, errors, materialize_module, save_materialized
from torchfake._files import safetensors as own_format


def with_names(*names: str, tied: bool = False) -> nn.Module:
    """A module with parameters of these names, in a child too."""
    module = nn.Module()
    module.child = nn.Module()
    first = nn.Parameter(torch.randn(3))
    for name in names:
        for owner in (module, module.child):
            owner._parameters[name] = first if tied else nn.Parameter(torch.randn(3))
    return module


GOOD = [
    "", "a\0b", "a\nb", "\x1b[31m", "\u202e", "é", "\U0001f600", "../a", "/etc/x", "[red]",
    "x" * 9999, "{}", '"', "\\", "dtype", "format", "torchfake_record", "model.safetensors",
    "__metadata__x",
]  # fmt: skip


def test_names_that_a_file_can_have(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return with_names(*GOOD)

    save_materialized(seeded(build, deferred=True), tmp_path, max_shard_size=200)
    expected = state_bits(seeded(build, deferred=False))
    assert values_of(tmp_path) == expected
    loaded = materialize_module(deferred_init(build), checkpoint=tmp_path)
    assert state_bits(loaded) == expected
    save_materialized(seeded(build, deferred=True), tmp_path, max_shard_size=200)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("__metadata__", "can be named __metadata__, as its header has other data there: rename"),
        ("\ud800", r"'\\ud800' has half of a surrogate pair"),
        (3, "3 is a int: the name of a tensor is a str"),
    ],
)
@pytest.mark.parametrize("kind", ["deferred", "real", "transformers"])
def test_names_that_a_file_cannot_have(
    tmp_path: Path, name: str, said: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> nn.Module:
        module = MODELS["llama"]() if kind == "transformers" else nn.Linear(2, 2)
        module._register_state_dict_hook(
            lambda module, state, prefix, _: state.update({name: torch.ones(2)})
        )
        return module

    module = build() if kind == "real" else deferred_init(build)
    with pytest.raises(errors.CheckpointError, match=said):
        save_materialized(module, tmp_path / "there")
    assert not list(tmp_path.iterdir())


def test_a_parameter_that_has_the_name_of_the_metadata(tmp_path: Path) -> None:
    module = deferred_init(nn.Module)
    module.register_parameter("__metadata__", nn.Parameter(torch.ones(3)))
    with pytest.raises(errors.CheckpointError, match="__metadata__"):
        save_materialized(module, tmp_path)


def test_ties_do_not_replace_what_the_header_says_of_the_file(tmp_path: Path) -> None:
    """The metadata has the names of tied tensors, beside keys that readers need."""
    for _ in range(2):
        module = seeded(lambda: with_names("a", "format", "torchfake_record", tied=True),
                        deferred=True)  # fmt: skip
        save_materialized(module, tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    assert len(metadata["torchfake_record"]) == 64
    assert metadata["child.a"] == "a"


def test_more_names_than_a_header_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_format, "MAX_HEADER_BYTES", 200)
    module = deferred_init(nn.Linear, 2, 2)
    with pytest.raises(
        errors.CheckpointError, match=r"no reader takes more than 200: give shorter"
    ):
        save_materialized(module, tmp_path)


def test_an_index_that_has_a_name_twice(tmp_path: Path) -> None:
    save_materialized(seeded(lambda: nn.Linear(3, 3), deferred=True), tmp_path, max_shard_size=20)
    index = tmp_path / "model.safetensors.index.json"
    map_text = json.dumps(json.loads(index.read_text())["weight_map"])
    other = next(iter(json.loads(map_text).values()))
    index.write_text(f'{{"weight_map": {map_text[:-1]}, "weight": "{other}"}}}}')
    with pytest.raises(
        errors.CheckpointError, match=r"index.json cannot be read: .*'weight' twice"
    ):
        materialize_module(deferred_init(nn.Linear, 3, 3), checkpoint=tmp_path)
