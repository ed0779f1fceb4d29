"""Files that have another name until they are complete.

Input: the path of a file, and its contents if they are at hand. Output: a unique name beside it;
the file, whole; the removal of what was left. Invariant: a file has its name only when all of it is
on the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from pathlib import Path

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
