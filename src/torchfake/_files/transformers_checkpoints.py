"""Models of transformers: files and values in the form that transformers has them.

transformers renames, merges and splits tensors when it saves and loads, so its own functions are
used. Input: one of its models, and a directory. Output: files that its ``save_pretrained`` has laid
out, with values that are computed here; or values that its ``from_pretrained`` has read.
Invariant: what is patched in transformers is patched for one call, in one place.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchfake._files.disk.incomplete import incomplete_name
from torchfake._patches.patch import Patch, Patched
from torchfake._torch import backends, dispatcher
from torchfake._torch.contexts import Setting, holding
from torchfake.errors import CheckpointError

_lock = threading.RLock()
"""What is patched and switched here belongs to the process."""

WriteFile = Callable[[dict[str, torch.Tensor], str, dict[str, str]], None]
"""Writes tensors to the file of a name, with metadata."""


def is_transformers_model(module: torch.nn.Module) -> bool:
    """Whether `module` is a model of transformers, which is not imported for the answer."""
    transformers: Any = sys.modules.get("transformers")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


def pretrained_files(
    module: Any, folder: Path, shard_bytes: int, write_file: WriteFile
) -> dict[str, bytes]:
    """Call the model's own ``save_pretrained``, which decides on names, ties, conversions and the
    config; files of tensors are written by `write_file`.

    Returns:
        The contents of all other files, by name. They were in a temporary directory in `folder`, as
        the method may be interrupted while it writes one.
    """
    temporary = incomplete_name(folder / "pretrained")
    try:
        with holding(_lock), _tensors_written_by(write_file), _no_progress_bars():
            module.save_pretrained(temporary, max_shard_size=shard_bytes)
        paths = sorted(path for path in temporary.rglob("*") if path.is_file())
        return {str(path.relative_to(temporary)): path.read_bytes() for path in paths}
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _tensors_written_by(write_file: WriteFile) -> Patched:
    """Context in which files of tensors that this thread saves are written by `write_file`. Checked
    on transformers 5.23.
    """
    from transformers import modeling_utils

    thread = threading.get_ident()

    def saving(original: Callable[..., None]) -> Callable[..., None]:
        def save(tensors: Any, path: Any, metadata: Any = None) -> None:
            if threading.get_ident() == thread:
                write_file(tensors, Path(path).name, metadata or {})
            else:
                original(tensors, path, metadata=metadata)

        return save

    return Patched([Patch(modeling_utils, "safe_save_file", saving)])


def _no_progress_bars() -> Setting:
    """Context in which transformers shows no progress bars."""
    from transformers.utils import logging

    switches: Any = logging

    def switch(on: bool) -> None:
        (switches.enable_progress_bar if on else switches.disable_progress_bar)()

    return Setting(switches.is_progress_bar_enabled, switch, False)


Shape = tuple[int, ...]


def converts_checkpoints(module: Any) -> bool:
    """Whether transformers renames, merges or splits the tensors of a checkpoint of `module`."""
    from transformers import conversion_mapping

    return bool(conversion_mapping.get_model_conversion_mapping(module, add_legacy=False))


def read_pretrained(
    module: Any, folder: str | os.PathLike[str]
) -> tuple[dict[str, torch.Tensor], dict[str, Shape]]:
    """The values in `folder` for a model like `module`, by the names of its ``state_dict()``; and
    the shapes of the tensors that it does not take.

    For checkpoints whose tensors are renamed, merged or split when they are loaded. This needs
    memory for the whole model.

    Raises:
        CheckpointError: if it cannot be read.
    """
    kept = backends.keeping_state(torch.default_generator)
    with holding(_lock), dispatcher.as_eager(), kept, _no_progress_bars():
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
    unused = {name: tuple(shape) for name, shape, _ in info["mismatched_keys"]}
    unused.update(dict.fromkeys(info["unexpected_keys"], ()))
    left_out = {*info["missing_keys"], *unused}
    return {name: t for name, t in loaded.state_dict().items() if name not in left_out}, unused
