"""What the system refuses while files are written, as an error that says what to do.

Input: an OSError, the file, and its size. Output: a CheckpointError that names the file, the bytes
it needs and those that are free, and the remedy. Invariant: the OSError is its cause.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from torchfake.errors import CheckpointError

Path = str | os.PathLike[str]

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


@contextmanager
def reported(path: Path, num_bytes: int | None = None) -> Iterator[None]:
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


def write_error(error: OSError, path: Path, num_bytes: int | None = None) -> CheckpointError:
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


def _sizes(path: Path, num_bytes: int) -> str:
    text = f"The file needs {num_bytes:,} bytes"
    try:
        free = shutil.disk_usage(os.path.dirname(os.fspath(path)) or ".").free
    except OSError:
        return text
    return f"{text}, and {free:,} are free there"
