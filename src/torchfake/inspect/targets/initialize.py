"""Initializes a TARGET and writes it to files, for ``torchfake init``.

Input: a TARGET and options, as text. Output: a directory that ``from_pretrained`` reads, and a
record of its files. Invariant: the model is never in memory as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from torchfake.checkpoint import save_materialized
from torchfake.errors import TargetError
from torchfake.inspect.targets.build import build
from torchfake.inspect.targets.options import dtype_named
from torchfake.inspect.targets.resolve import resolve


@dataclass(frozen=True)
class Written:
    """The files that were written, and the time it took."""

    target: str  # as the user wrote it
    directory: str
    files: tuple[str, ...]  # all files in the directory, sorted
    num_bytes: int  # of all files
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as a dict for JSON."""
        return asdict(self)


def init_target(
    target: str,
    directory: Path,
    *,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    seed: int = 0,
    max_shard_size: str = "5GB",
    threads: int | None = None,
    progress: bool | None = None,
) -> Written:
    """Initialize the model of `target` as eager does after ``torch.manual_seed(seed)``, and write
    it; see :func:`torchfake.save_materialized`.

    Args:
        target: a TARGET, see :mod:`torchfake.inspect.targets.resolve`.
        directory: the directory to write to.
        overrides: changes of the config, each as ``key=value``.
        dtype: the name of torch's default dtype while building, and of the dtype of the result.
        seed: the random seed.
        max_shard_size: the largest size of a file.
        threads: the number of threads that compute values.
        progress: whether to show a progress bar.

    Raises:
        TargetError: if there is no such target, or it cannot be built.
        CheckpointError: if `directory` holds another model.
    """
    start = time.perf_counter()
    requested = None if dtype is None else dtype_named(dtype)
    resolved = resolve(target, overrides=overrides)
    if resolved.is_built:
        raise TargetError(
            f"{target} is already built: name its class, or a function that builds it, so that "
            "its values can be drawn from the seed"
        )
    torch.manual_seed(seed)
    module = build(resolved, dtype=requested, deferred=True).module
    save_materialized(
        module, directory, max_shard_size=max_shard_size, threads=threads, progress=progress
    )
    files = sorted(path for path in directory.iterdir() if path.is_file())
    return Written(
        target,
        str(directory),
        tuple(path.name for path in files),
        sum(path.stat().st_size for path in files),
        time.perf_counter() - start,
    )
