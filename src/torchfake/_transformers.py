"""What transformers does to checkpoints that others do not.

Enters: its models, and directories. Leaves: files written by its own ``save_pretrained``, and
values read by its own ``from_pretrained``. Invariant: its names are patched in one place, for one
call.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchfake import _private
from torchfake.errors import CheckpointError

_one_at_a_time = threading.RLock()
"""What is patched and switched belongs to the process."""

WriteFile = Callable[[dict[str, torch.Tensor], Path, dict[str, str]], None]


def is_its_model(module: torch.nn.Module) -> bool:
    """Whether `module` is a model of transformers; asked without importing that."""
    transformers: Any = sys.modules.get("transformers")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


def save_pretrained(module: Any, folder: Path, shard_bytes: int, write_file: WriteFile) -> None:
    """Its own method: names, ties, conversions and the config are its business. Files of tensors
    are written by `write_file`.
    """
    with _one_at_a_time, _files_written_by(write_file), _no_bars():
        module.save_pretrained(folder, max_shard_size=shard_bytes)


@contextmanager
def _files_written_by(write_file: WriteFile) -> Iterator[None]:
    """Context: files of this thread go through `write_file`. Checked on transformers 5.23."""
    from transformers import modeling_utils

    module: Any = modeling_utils
    original: Callable[..., None] = module.safe_save_file
    thread = threading.get_ident()

    def save(tensors: Any, path: Any, metadata: Any = None) -> None:
        if threading.get_ident() == thread:
            write_file(tensors, Path(path), metadata or {})
        else:
            original(tensors, path, metadata=metadata)

    module.safe_save_file = save
    try:
        yield
    finally:
        module.safe_save_file = original


@contextmanager
def _no_bars() -> Iterator[None]:
    """Context: no progress bars but ours."""
    from transformers.utils import logging

    bars: Any = logging
    was_enabled = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            bars.enable_progress_bar()


Shape = tuple[int, ...]


def converts(module: Any) -> bool:
    """Whether it renames, merges or splits the tensors of a checkpoint of `module`."""
    from transformers import conversion_mapping

    return bool(conversion_mapping.get_model_conversion_mapping(module, add_legacy=False))


def read_pretrained(
    module: Any, folder: str | os.PathLike[str]
) -> tuple[dict[str, torch.Tensor], dict[str, Shape]]:
    """What `folder` has for a model like `module`, by the names of its ``state_dict()``; and the
    shapes of what it has besides.

    For checkpoints whose tensors are renamed, merged or split when they are loaded. The model is in
    memory once for it.

    Raises:
        CheckpointError: if it cannot be read.
    """
    with _one_at_a_time, _private.as_eager(), torch.random.fork_rng(devices=[]), _no_bars():
        try:
            loaded, info = type(module).from_pretrained(
                folder,
                config=module.config,
                dtype=module.dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise CheckpointError(f"transformers cannot read {folder}: {error}") from error
    others = {name: tuple(there) for name, there, _ in info["mismatched_keys"]}
    others.update(dict.fromkeys(info["unexpected_keys"], ()))
    left_out = {*info["missing_keys"], *others}
    return {name: t for name, t in loaded.state_dict().items() if name not in left_out}, others
