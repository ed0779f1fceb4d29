"""Atomic file writes, and errors of the operating system as CheckpointErrors with a remedy.

Input: paths, the contents of a file where they are known, and OSErrors. Output: a temporary name
for a file that is being written; the complete file; the removal of incomplete files; a
CheckpointError with the bytes needed, the bytes free, and the remedy. Invariant: a file gets its
name only when all of its bytes are on the disk; each CheckpointError has the OSError as its cause.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from torchfake.errors import CheckpointError

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_IN_THE_WAY = (
    errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG
)  # fmt: skip
_REMEDIES = {
    _FULL: "free some space there, or give a directory on another disk",
    (errno.EFBIG,): (
        "raise the limit of file sizes (ulimit -f; some file systems have one of their own), or "
        "give a smaller max_shard_size"
    ),
    _NOT_ALLOWED: "give a directory that this process may write to",
    _IN_THE_WAY: "remove what is in its way, or give another directory",
    (errno.EMFILE, errno.ENFILE): "close some files, or raise the limit (ulimit -n)",
}


@contextlib.contextmanager
def reported(path: str | os.PathLike[str], num_bytes: int | None = None) -> Iterator[None]:
    """Context in which an OSError is raised as a CheckpointError.

    Args:
        path: the file that is written, unless the error names another file.
        num_bytes: the size of the whole file, if it is known.

    Raises:
        CheckpointError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise write_error(error, path, num_bytes) from error


def write_error(
    error: OSError, path: str | os.PathLike[str], num_bytes: int | None = None
) -> CheckpointError:
    """The CheckpointError for an OSError; see :func:`reported`."""
    if num_bytes is None and isinstance(error.filename, (str, os.PathLike)):
        path = error.filename
    remedy = "give another directory"
    for codes, text in _REMEDIES.items():
        if error.errno in codes:
            remedy = text
    parts = [f"{os.fspath(path)} cannot be written: {error.strerror or error}"]
    if num_bytes is not None:
        parts.append(_sizes(path, num_bytes))
    return CheckpointError(f"{'. '.join(parts)}. To go on, {remedy}, and call again")


def _sizes(path: str | os.PathLike[str], num_bytes: int) -> str:
    text = f"The file needs {num_bytes:,} bytes"
    try:
        free = shutil.disk_usage(os.path.dirname(os.fspath(path)) or ".").free
    except OSError:
        return text
    return f"{text}, and {free:,} are free there"


INCOMPLETE = ".incomplete"
"""The suffix of a file's temporary name, until the file is complete."""


def incomplete_name(path: Path) -> Path:
    """A unique temporary name for the file that will be `path`."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{INCOMPLETE}")


def write_whole(path: Path, contents: bytes) -> None:
    """Write a file; an existing file of this name is replaced only when the new one is complete. A
    path that is no regular file, such as /dev/stdout, is written to directly.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(contents)
        return
    path = Path(os.path.realpath(path))  # a link stays a link
    incomplete = incomplete_name(path)
    try:
        with incomplete.open("xb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(incomplete, path)
    except BaseException:
        with contextlib.suppress(OSError):
            incomplete.unlink()
        raise


def remove_incomplete(folder: Path, *, of_all: bool) -> None:
    """Remove incomplete files that earlier writers have left in `folder`.

    Args:
        folder: the directory.
        of_all: remove the files of all processes, since nobody else writes there; False: only
            those of processes that have ended, where the system can tell.
    """
    for name in os.listdir(folder):
        found = re.search(r"\.(\d+)-[0-9a-f]{8}$", name.removesuffix(INCOMPLETE))
        if not name.endswith(INCOMPLETE) or found is None:
            continue
        if of_all or (os.name == "posix" and not _is_alive(int(found[1]))):
            _remove(folder / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # a process of another user; or not a valid process id
    return True
