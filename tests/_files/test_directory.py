"""Directories that earlier calls have written to: continued, replaced, never mistaken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from torch import nn

from tests._files.conftest import (
    MODELS,
    Plain,
    seeded,
    state_bits,
    values_of,
)
from tests.oracle import bits
from torchfake import (
    deferred_init,
    errors,
    materialize_module,
    save_materialized,
)
from torchfake._files.disk import INCOMPLETE
from torchfake._files.safetensors import Writer


def test_a_second_call_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = seeded(Plain, deferred=True)
    save_materialized(module, tmp_path, max_shard_size=1000)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    save_materialized(module, tmp_path, max_shard_size=1000)
    save_materialized(seeded(Plain, deferred=True), tmp_path, max_shard_size=1000)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("name", ["llama", None])
def test_an_interrupted_save_is_continued(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = MODELS[name] if name else Plain
    module = seeded(build, deferred=True)
    original, written = Writer.write, []

    def write(self: Any, tensor: str, start: int, values: Any) -> None:
        written.append(tensor)
        if len(written) == 9:
            raise KeyboardInterrupt
        original(self, tensor, start, values)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write", write)
        with pytest.raises(KeyboardInterrupt):
            save_materialized(module, tmp_path, max_shard_size="3KB")
    files = set(tmp_path.glob("*.safetensors"))
    assert files
    assert not list(tmp_path.glob("*.index.json"))
    assert not list(tmp_path.glob(f"*{INCOMPLETE}"))
    first = {path: path.stat().st_mtime_ns for path in files}
    save_materialized(module, tmp_path, max_shard_size="3KB")
    assert {path: path.stat().st_mtime_ns for path in files} == first
    save_materialized(seeded(build, deferred=False), tmp_path / "eager")
    assert values_of(tmp_path) == values_of(tmp_path / "eager")


def test_a_killed_save_is_continued(tmp_path: Path) -> None:
    """No file that looks complete is left; another call continues."""
    code = textwrap.dedent(f"""
        import time, torch, torchfake
        from torchfake._files.safetensors import Writer
        original = Writer.write
        def slowly(*args):
            original(*args)
            time.sleep(0.05)
        Writer.write = slowly
        torch.manual_seed(0)
        m = torchfake.deferred_init(
            lambda: torch.nn.Sequential(*(torch.nn.Linear(30, 30) for _ in range(60)))
        )
        torchfake.save_materialized(m, {str(tmp_path)!r}, max_shard_size="8KB")
    """)
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        while not list(tmp_path.glob("*.safetensors")):
            assert process.poll() is None, process.communicate()[1].decode()
            time.sleep(0.01)
        process.kill()
    assert not (tmp_path / "model.safetensors.index.json").exists()
    for path in tmp_path.glob("*.safetensors"):
        safetensors.torch.load_file(path)
    with pytest.raises(errors.CheckpointError, match="has none of"):
        materialize_module(deferred_init(nn.Linear, 3, 3), checkpoint=tmp_path)

    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(30, 30) for _ in range(60)))

    save_materialized(seeded(build, deferred=True), tmp_path, max_shard_size="8KB")
    eager = seeded(build, deferred=False)
    assert values_of(tmp_path) == {name: bits(t) for name, t in eager.state_dict().items()}


@pytest.mark.parametrize("name", ["llama", None])
def test_another_size_in_the_same_directory(name: str | None, tmp_path: Path) -> None:
    build = MODELS[name] if name else Plain
    for size in ("3KB", "5GB", "6KB", "3KB"):
        save_materialized(seeded(build, deferred=True), tmp_path, max_shard_size=size)
        loaded = materialize_module(deferred_init(build), checkpoint=tmp_path)
        assert state_bits(loaded) == state_bits(seeded(build, deferred=False))
        index = tmp_path / "model.safetensors.index.json"
        files = {path.name for path in tmp_path.glob("*.safetensors")}
        if index.exists():
            assert files == set(json.loads(index.read_text())["weight_map"].values())
        else:
            assert files == {"model.safetensors"}


def test_an_interrupted_change_of_size_does_not_look_complete(tmp_path: Path) -> None:
    save_materialized(seeded(Plain, deferred=True), tmp_path, max_shard_size=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save_materialized(seeded(Plain, deferred=True), tmp_path, max_shard_size="4KB")
    with pytest.raises(errors.CheckpointError, match="has none of"):
        materialize_module(deferred_init(Plain), checkpoint=tmp_path)


def test_files_left_by_others_are_removed(tmp_path: Path) -> None:
    """Whoever has the lock knows that nobody writes them: a number may be that of a new process."""
    left = [
        tmp_path / f"model.safetensors.{pid}-01234567{INCOMPLETE}"
        for pid in (2**22 + 1, os.getpid(), 2**80)
    ]
    own = tmp_path / f"notes{INCOMPLETE}"
    for path in (*left, own):
        path.touch()
    save_materialized(deferred_init(nn.Linear, 3, 3), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", own.name]
