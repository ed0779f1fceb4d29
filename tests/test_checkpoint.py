"""Modules saved by ``save_materialized``: the files of eager, for every kind of module."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from tests._files.conftest import (
    MODELS,
    Plain,
    seeded,
    state_bits,
    values_of,
)
from tests._files.conftest import engine as engine
from tests._files.conftest import quiet as quiet
from tests.oracle import assert_same, bits
from tests.tiny_tiles import tiny_tiles
from torchfake import (
    deferred_init,
    errors,
    fake_mode,
    is_deferred,
    materialize_module,
    save_materialized,
)
from torchfake._files import save


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("max_shard_size", ["20KB", "5GB"])
@pytest.mark.usefixtures("engine")
def test_as_save_pretrained(name: str, max_shard_size: str, tmp_path: Path) -> None:
    build, ours, theirs = MODELS[name], tmp_path / "ours", tmp_path / "theirs"
    eager = seeded(build, deferred=False)
    eager.save_pretrained(theirs, max_shard_size=max_shard_size)
    module = seeded(build, deferred=True)
    save_materialized(module, ours, max_shard_size=max_shard_size)
    assert all(is_deferred(p) for p in module.parameters())
    assert sorted(os.listdir(ours)) == sorted(os.listdir(theirs))
    for path in theirs.glob("*.json"):
        assert (ours / path.name).read_text() == path.read_text()
    for path in theirs.glob("*.safetensors"):
        assert tensors_in(ours / path.name) == tensors_in(path)
    loaded = type(eager).from_pretrained(ours).state_dict()
    assert {k: bits(t) for k, t in loaded.items()} == state_bits(eager)


def tensors_in(path: Path) -> tuple[Any, bytes]:
    """The header without its metadata, and all bytes after it."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header.pop("__metadata__")["format"] == "pt"
    return list(header.items()), data[8 + size :]


@pytest.mark.usefixtures("engine")
def test_plain_modules(tmp_path: Path) -> None:
    eager, module = seeded(Plain, deferred=False), seeded(Plain, deferred=True)
    save_materialized(module, tmp_path)
    state = eager.state_dict()
    assert "left_out" not in state
    del state["second.weight"]
    assert values_of(tmp_path) == {name: bits(t) for name, t in state.items()}
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata()["second.weight"] == "first.weight"
    materialize_module(module)
    assert_same(eager, module)


@pytest.mark.parametrize("max_shard_size", [1000, "3KB"])
def test_shards_of_plain_modules(tmp_path: Path, max_shard_size: Any) -> None:
    save_materialized(seeded(Plain, deferred=True), tmp_path, max_shard_size=max_shard_size)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in safetensors.torch.load_file(tmp_path / file)
    assert len(set(index["weight_map"].values())) > 1
    loaded = materialize_module(deferred_init(Plain), checkpoint=tmp_path)
    assert_same(seeded(Plain, deferred=False), loaded)


def test_real_and_half_real_modules(tmp_path: Path) -> None:
    eager, module = seeded(Plain, deferred=False), seeded(Plain, deferred=True)
    materialize_module(module.first)
    save_materialized(module, tmp_path / "half")
    save_materialized(eager, tmp_path / "real")
    assert values_of(tmp_path / "half") == values_of(tmp_path / "real")


def test_another_model_is_not_overwritten(tmp_path: Path) -> None:
    save_materialized(seeded(Plain, deferred=True), tmp_path)
    with pytest.raises(errors.CheckpointError, match="a different model, config or seed"):
        save_materialized(seeded(Plain, deferred=True, seed=1), tmp_path)


def test_modules_that_cannot_be_saved(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(errors.CheckpointError, match="_extra_state is a dict"):
        save_materialized(deferred_init(Extra, 3, 3), tmp_path)
    with pytest.raises(errors.CheckpointError, match=r"^0 is torch.complex128 and torch.strided"):
        save_materialized(nn.ParameterList([torch.ones(2, dtype=torch.complex128)]), tmp_path)
    with fake_mode():
        fake = nn.Linear(3, 3)
    with pytest.raises(errors.NotDeferredError, match=r"^weight is fake and was not recorded"):
        save_materialized(fake, tmp_path)
    with pytest.raises(errors.NotDeferredError, match="takes a module, not str"):
        save_materialized("model", tmp_path)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(errors.CheckpointError, match="is a file: give a directory"):
        save_materialized(nn.Linear(3, 3), tmp_path / "file")


def test_the_bar_counts_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    original = save.write_file

    def write_file(*args: Any, advance: Any = None, **kwargs: Any) -> None:
        original(*args, advance=counted.append, **kwargs)

    monkeypatch.setattr("torchfake._files.save.write_file", write_file)
    module = deferred_init(nn.Linear, 50, 50)
    with tiny_tiles():
        save_materialized(module, tmp_path)
    assert sum(counted) == 4 * (50 * 50 + 50)


def test_threads_that_save_models_of_transformers(tmp_path: Path) -> None:
    modules = [seeded(MODELS["llama"], deferred=True, seed=i) for i in range(3)]
    eager = [seeded(MODELS["llama"], deferred=False, seed=i) for i in range(3)]
    threads = [
        threading.Thread(target=save_materialized, args=(m, tmp_path / str(i)))
        for i, m in enumerate(modules)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, module in enumerate(eager):
        assert values_of(tmp_path / str(i)) == state_bits(module)
