"""A save that the system refuses, interrupts or kills at any of its calls, and is called again."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests._files.conftest import MODELS, Plain, seeded
from tests._files.faults import (
    CODES,
    STRIDE,
    bytes_in,
    calls_watched,
    dying_at,
    failing_at,
    num_calls,
)
from torchfake import deferred_init, errors, save_materialized
from torchfake._files.disk import INCOMPLETE, write_error
from torchfake._files.lock import LOCK_NAME

posix = pytest.mark.skipif(os.name != "posix", reason="limits, forks and /proc of POSIX")
pytestmark = posix

Save = Callable[[Path], None]


@pytest.fixture(params=["llama", "plain"])
def save(request: pytest.FixtureRequest) -> Save:
    """A save of several files; each model has its weights and its index in files of its own."""
    build, size = (Plain, "1KB") if request.param == "plain" else (MODELS["llama"], "50KB")
    module = seeded(build, deferred=True)
    return lambda folder: save_materialized(module, folder, max_shard_size=size, threads=1)


def assert_saved(save: Save, folder: Path, expected: dict[str, bytes]) -> None:
    """A call after the failure gives the bytes of a clean save, and nothing else is left."""
    save(folder)
    assert bytes_in(folder) == expected
    shutil.rmtree(folder)


def test_each_call_may_fail(save: Save, tmp_path: Path) -> None:
    clean, folder = tmp_path / "clean", tmp_path / "folder"
    count = num_calls(clean, lambda: save(clean))
    assert count > 30
    num_refused = 0
    for number in range(1, count + 1, STRIDE):
        code = CODES[number % len(CODES)]
        said = ""
        try:
            with failing_at(number, code, folder):
                save(folder)
        except errors.CheckpointError as error:
            said = str(error)
        assert not said or str(folder) in said
        num_refused += bool(said)
        left = [path.name for path in folder.glob("*") if path.is_file()]
        assert not [name for name in left if name == LOCK_NAME or name.endswith(INCOMPLETE)]
        assert_saved(save, folder, bytes_in(clean))
    assert num_refused > 0.5 * count / STRIDE


def test_an_interrupt_at_each_call(save: Save, tmp_path: Path) -> None:
    clean, folder = tmp_path / "clean", tmp_path / "folder"
    for number in range(1, num_calls(clean, lambda: save(clean)) + 1, STRIDE):

        def interrupt(count: int, _: str, number: int = number) -> None:
            if count == number:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), calls_watched(folder, interrupt):
            save(folder)
        assert_saved(save, folder, bytes_in(clean))


def test_death_at_any_call(save: Save, tmp_path: Path) -> None:
    clean, folder = tmp_path / "clean", tmp_path / "folder"
    for number in range(1, num_calls(clean, lambda: save(clean)) + 1, STRIDE):
        process = os.fork()
        if not process:
            with dying_at(number, folder):
                save(folder)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
        assert_saved(save, folder, bytes_in(clean))


@pytest.fixture
def size_limit() -> Iterator[Callable[[int], None]]:
    """Sets the largest size of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit", [0, 1, 100, 1500])
def test_a_limit_of_file_sizes(
    save: Save, tmp_path: Path, size_limit: Callable[[int], None], limit: int
) -> None:
    save(tmp_path / "clean")
    size_limit(limit)
    try:
        said = r"needs [\d,]+ bytes.*ulimit -f.* max_shard_size" if limit > 1000 else "ulimit -f"
        with pytest.raises(errors.CheckpointError, match=said):
            save(tmp_path / "folder")
    finally:
        size_limit(resource.RLIM_INFINITY)
    assert_saved(save, tmp_path / "folder", bytes_in(tmp_path / "clean"))


def test_a_full_disk(tmp_path: Path) -> None:
    """A config that is a link to a device which is always full."""
    module = seeded(MODELS["llama"], deferred=True)
    save_materialized(module, tmp_path / "clean")
    (tmp_path / "config.json").symlink_to("/dev/full")
    with pytest.raises(errors.CheckpointError, match=r"config.json cannot be written: No space"):
        save_materialized(module, tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("config.json")  # a loop, which is replaced
    save_materialized(module, tmp_path)
    shutil.move(tmp_path / "clean", tmp_path.with_name(f"{tmp_path.name}-clean"))
    assert bytes_in(tmp_path) == bytes_in(tmp_path.with_name(f"{tmp_path.name}-clean"))


def test_a_header_that_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a disk less than all is written, and that is no error yet."""
    original = os.pwrite
    module = seeded(Plain, deferred=True)
    save_materialized(module, tmp_path / "clean")
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: original(file, data[:7], at))
    save_materialized(module, tmp_path / "in_parts")
    assert bytes_in(tmp_path / "in_parts") == bytes_in(tmp_path / "clean")


@pytest.mark.parametrize("what", ["file", "below_a_file", "dangling", "loop", "long", "nul"])
def test_what_is_in_the_way_of_the_directory(tmp_path: Path, what: str) -> None:
    path = tmp_path / "there"
    if what in ("file", "below_a_file"):
        path.touch()
        path = path / "below" if what == "below_a_file" else path
    elif what in ("dangling", "loop"):
        path.symlink_to(tmp_path / "nowhere" if what == "dangling" else path)
    elif what == "long":
        path = tmp_path / ("x" * 300)
    else:
        path = tmp_path / "a\0b"
    with pytest.raises(errors.CheckpointError):
        save_materialized(deferred_init(nn.Linear, 2, 2), path)


@pytest.mark.parametrize(
    "what", ["directory", "dangling", "garbage", "empty", "brackets", "truncated"]
)
def test_what_is_in_the_way_of_a_file(tmp_path: Path, what: str) -> None:
    path = tmp_path / "model.safetensors"
    module = deferred_init(nn.Linear, 2, 2)
    if what == "directory":
        path.mkdir()
    elif what == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif what == "truncated":
        save_materialized(module, tmp_path)
        path.write_bytes(path.read_bytes()[:-1])
    else:
        header = b"[" * 100_000 if what == "brackets" else b"garbage" * (what == "garbage")
        path.write_bytes(len(header).to_bytes(8, "little") + header if header else b"")
    with pytest.raises(errors.CheckpointError, match=r"model\.safetensors already exists"):
        save_materialized(module, tmp_path)


def test_messages() -> None:
    full = str(write_error(OSError(errno.ENOSPC, "No space left on device"), "/x", 12345))
    assert "The file needs 12,345 bytes, and " in full
    assert "free some space there" in full
    assert (
        "free" not in str(write_error(OSError(errno.ENOSPC, "full"), "/no/x", 3)).partition("3")[0]
    )
    named = write_error(PermissionError(errno.EACCES, "denied", "/a/b"), "/x")
    assert str(named) == (
        "/a/b cannot be written: denied. To go on, give a directory that this process may write "
        "to, and call again"
    )


def test_real_modules_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Linear(30, 30)
    with failing_at(8, errno.EIO, tmp_path), pytest.raises(errors.CheckpointError):
        save_materialized(module, tmp_path)
    save_materialized(module, tmp_path)
    save_materialized(seeded(lambda: nn.Linear(30, 30), deferred=True), tmp_path / "deferred")
