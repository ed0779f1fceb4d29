"""Files that are complete or not there, and refusals of the system as errors that say what to do.

Input: paths, the contents of a file if they are at hand, and OSErrors. Output: a unique name beside
a file that is being written; the file, whole; the removal of what was left; a CheckpointError that
names the file, the bytes it needs and those that are free, and the remedy. Invariant: a file has
its name only when all of its bytes are on the disk; the OSError is the cause of the error.
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
    """Context whose OSErrors are CheckpointErrors.

    Args:
        path: what is written, unless the error names something else.
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
"""The end of a file's name until it is complete."""


def incomplete_name(path: Path) -> Path:
    """A unique name for what will be `path`."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{INCOMPLETE}")


def write_whole(path: Path, contents: bytes) -> None:
    """Write a file; what had its name stays until then. What is no file, such as /dev/stdout, is
    written to.
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
    """Remove files that earlier writers have left.

    Args:
        folder: where they are.
        of_all: whether it is certain that nobody else writes there; otherwise only those of
            processes that do not run any more, where that is known.
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
        pass  # of another user; or no number of a process
    return True
