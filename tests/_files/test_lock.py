"""One save at a time in a directory, in all processes and threads; a dead one blocks nobody."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests._files.conftest import seeded, state_bits, values_of
from tests._files.faults import bytes_in
from torchfake import errors, save_materialized
from torchfake._files import lock as lock_file
from torchfake._files.lock import LOCK_NAME, DirectoryLock
from torchfake._files.safetensors import Writer

posix = pytest.mark.skipif(os.name != "posix", reason="forks")


def build() -> nn.Module:
    return nn.Sequential(*(nn.Linear(9, 9) for _ in range(4)))


def acquired(folder: Path) -> DirectoryLock:
    lock = DirectoryLock(folder)
    lock.acquire()
    return lock


def test_two_seeds_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread saves while the first writes: the second is refused, the first is whole."""
    modules = [seeded(build, deferred=True, seed=seed) for seed in (1, 2)]
    refused: list[str] = []
    original = Writer.write

    def write(self: Any, *args: Any) -> None:
        monkeypatch.setattr(Writer, "write", original)
        thread = threading.Thread(target=save_second)
        thread.start()
        thread.join()
        original(self, *args)

    def save_second() -> None:
        try:
            save_materialized(modules[1], tmp_path, max_shard_size=300)
        except errors.CheckpointError as error:
            refused.append(str(error))

    monkeypatch.setattr(Writer, "write", write)
    save_materialized(modules[0], tmp_path, max_shard_size=300)
    assert f"{tmp_path} is being written to by process {os.getpid()} on " in refused[0]
    assert values_of(tmp_path) == state_bits(seeded(build, deferred=False, seed=1))
    with pytest.raises(errors.CheckpointError, match="a different model, config or seed"):
        save_materialized(modules[1], tmp_path, max_shard_size=300)
    save_materialized(modules[0], tmp_path, max_shard_size=300)
    assert LOCK_NAME not in bytes_in(tmp_path)


def test_it_leaves_nothing(tmp_path: Path) -> None:
    lock = acquired(tmp_path)
    for path in (tmp_path, tmp_path / ".", Path(os.path.relpath(tmp_path))):
        with pytest.raises(errors.CheckpointError, match="is being written to"):
            acquired(path)
    lock.release()
    lock.release()
    acquired(tmp_path).release()
    assert not list(tmp_path.iterdir())


def test_a_link_is_the_same_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    lock = acquired(tmp_path / "real")
    with pytest.raises(errors.CheckpointError, match="is being written to"):
        acquired(tmp_path / "link")
    lock.release()


def test_what_is_left_over_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("process 1 on another.machine")
    acquired(tmp_path).release()
    assert not list(tmp_path.iterdir())


@posix
def test_a_killed_process_blocks_nobody(tmp_path: Path) -> None:
    process = os.fork()
    if not process:
        lock = acquired(tmp_path)
        time.sleep(60)
        lock.release()
        os._exit(0)
    while not (tmp_path / LOCK_NAME).exists() or not (tmp_path / LOCK_NAME).read_text():
        time.sleep(0.001)
    with pytest.raises(errors.CheckpointError, match=f"by process {process} on"):
        acquired(tmp_path)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    acquired(tmp_path).release()
    assert not list(tmp_path.iterdir())


@posix
def test_a_process_that_was_forked_does_not_have_it(tmp_path: Path) -> None:
    """It may outlive the one that has it, which may be killed before it can release it."""
    lock = acquired(tmp_path)
    ends, begins = os.pipe()
    process = os.fork()
    if not process:
        lock.release()  # changes nothing
        code = 0 if (tmp_path / LOCK_NAME).exists() else 1
        try:
            acquired(tmp_path)
            code = 2
        except errors.CheckpointError:
            pass
        os.write(begins, bytes([code]))
        time.sleep(60)
        os._exit(0)
    assert os.read(ends, 1) == b"\0"
    assert lock._file is not None
    lock._file.close()  # as when the parent dies
    lock._file = None
    lock.release()
    acquired(tmp_path).release()
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(ends)
    os.close(begins)


@posix
def test_a_file_that_its_owner_removes_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever then locks it has not locked the directory."""
    original, removed = lock_file._lock, []

    def lock(descriptor: int) -> None:
        if len(removed) < 3:
            removed.append(descriptor)
            (tmp_path / LOCK_NAME).unlink()
        original(descriptor)

    monkeypatch.setattr(lock_file, "_lock", lock)
    held = acquired(tmp_path)
    assert (tmp_path / LOCK_NAME).exists()
    held.release()
    assert len(removed) == 3


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Threads of one process exclude each other; other processes are noticed at the end."""

    def no_locks(descriptor: int) -> None:
        raise OSError(code, "no locks")

    monkeypatch.setattr(lock_file, "_lock", no_locks)
    lock = acquired(tmp_path)
    with pytest.raises(errors.CheckpointError, match="is being written to"):
        acquired(tmp_path)
    lock.release()
    module, other = (seeded(build, deferred=True, seed=seed) for seed in (1, 2))
    save_materialized(other, tmp_path / "other", max_shard_size=300)
    original, calls = Writer.rename, []

    def rename(self: Any) -> None:
        original(self)
        calls.append(self)
        if len(calls) == 3:  # another process
            first = sorted((tmp_path / "other").glob("*.safetensors"))[0]
            (tmp_path / "one" / first.name).write_bytes(first.read_bytes())

    monkeypatch.setattr(Writer, "rename", rename)
    with pytest.raises(errors.CheckpointError, match="was changed by another process"):
        save_materialized(module, tmp_path / "one", max_shard_size=300)
    assert not list((tmp_path / "one").glob("*.index.json"))
