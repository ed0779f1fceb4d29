"""Deferred modules, written to files without ever being in memory as a whole.

This module has the public function; ``_files/save`` does the work. Input: a module. Output:
safetensors files and their index, as ``save_pretrained`` writes them. Invariant: a file gets its
name when it is complete, and the index is written last.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from torchfake._core import arguments
from torchfake._files import save
from torchfake._files.state_dict import is_sharded, tensors_to_save
from torchfake._materialize.progress import progress_bar
from torchfake._torch.distributed import dtensors
from torchfake.errors import CheckpointError, NotDeferredError


def save_materialized(
    module: torch.nn.Module,
    directory: str | os.PathLike[str],
    *,
    max_shard_size: int | str = "5GB",
    threads: int | None = None,
    progress: bool | None = None,
) -> None:
    """Write the values of a deferred module to safetensors files, tensor by tensor.

    The module itself is not changed. Memory holds at most its largest tensor and 64 MB, plus what
    an operation itself allocates; for tensors that are only filled with random numbers, a few MB.

    A transformers model is written by its own ``save_pretrained``, including its config, so that
    ``from_pretrained`` can read it. For any other module, the whole ``state_dict()`` is written;
    tied tensors are written once, under their first name.

    After an interruption, the same call continues after the last complete file.

    For a sharded module the same files are written by all ranks together: each rank writes its
    shards at their offsets. All ranks of the process group must make this call.

    Args:
        module: a module that is deferred, partly deferred, or real; sharded or not.
        directory: the output directory; created if necessary. For a sharded module, all ranks must
            share it.
        max_shard_size: the maximum size of a file, in bytes or as ``"200MB"`` or ``"1GiB"``; a
            larger tensor gets a file of its own.
        threads: the number of threads that compute values, by default ``torch.get_num_threads()``.
        progress: show a progress bar (needs tqdm); by default it is shown after two seconds.

    Raises:
        NotDeferredError: (a ValueError) if `module` is not a module, or has fakes that were never
            recorded.
        CheckpointError: (a ValueError) if `directory` contains another model, or another process is
            saving to it; if a file cannot be written, for instance because the disk is full (once
            there is space, the same call continues); or if safetensors files cannot store a tensor
            or its name.
        ValueError: if `threads` is less than 1.
        MissingExtraError: if huggingface_hub is not installed, for a module that is not a
            transformers model.
        ReplayError: if a recorded operation cannot be replayed.
        RankMismatchError: if the ranks do not have the same tensors.
    """
    if not isinstance(module, torch.nn.Module):
        raise NotDeferredError(f"save_materialized takes a module, not {type(module).__name__}")
    arguments.check_arguments(threads=threads, directory=directory, progress=progress)
    max_file_bytes = _num_bytes_of(max_shard_size)
    state = tensors_to_save(module)
    if is_sharded(state) and dtensors.rank_and_world_size()[0] != 0:
        progress = False
    with progress_bar(save.num_bytes_of(state), progress, "Writing") as advance:
        options = save.Options(max_file_bytes, threads, advance or (lambda _: None))
        save.save(module, state, Path(directory), options)


def _num_bytes_of(size: int | str) -> int:
    """Parse a size such as ``200MB``, in powers of 1000, or ``1GiB``, in powers of 1024."""
    is_size = isinstance(size, (int, str)) and not isinstance(size, bool)
    found = is_size and re.fullmatch(r"([0-9.]+) *([KMGT]?)(I?)B?", str(size).upper().strip())
    try:
        step = 1024 if found and found[3] else 1000
        num_bytes = int(float(found[1]) * step ** " KMGT".index(found[2] or " ")) if found else 0
    except ValueError:
        num_bytes = 0
    if num_bytes <= 0:
        raise CheckpointError(
            f"max_shard_size is {size!r}: give a number of bytes, or a size such as 200MB or 5GB"
        )
    return num_bytes
