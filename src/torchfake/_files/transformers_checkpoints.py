"""Models of transformers, saved and loaded by the functions of transformers.

transformers renames, merges and splits tensors when it saves and loads, so its own functions are
used. Input: a transformers model, and a directory. Output: files laid out by ``save_pretrained``,
with values that torchfake computes; or values read by ``from_pretrained``. Invariant: transformers
is patched in one place, for the duration of one call.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from torchfake._files.disk import incomplete_name
from torchfake._patches.patch import Patch, Patched
from torchfake._torch import backends, dispatcher
from torchfake._torch.contexts import Setting, holding, shared
from torchfake.errors import CheckpointError

_lock = shared(threading.RLock(), for_whole_calls=True)
"""Held while transformers is patched or its settings are changed, which affects all threads."""

WriteFile = Callable[[dict[str, torch.Tensor], str, dict[str, str]], None]
"""Writes a file: takes its tensors, its name, and its metadata."""


def is_transformers_model(module: torch.nn.Module) -> bool:
    """Whether `module` is a model of transformers; does not import transformers."""
    # not transformers.PreTrainedModel, which imports what may be missing
    models: Any = sys.modules.get("transformers.modeling_utils")
    return models is not None and isinstance(module, models.PreTrainedModel)


def pretrained_files(
    module: Any, folder: Path, shard_bytes: int, write_file: WriteFile
) -> dict[str, bytes]:
    """Call the model's own ``save_pretrained``, which decides on names, ties, conversions and the
    config; files of tensors are written by `write_file`.

    Returns:
        The contents of all other files, by name. ``save_pretrained`` writes them to a temporary
        directory in `folder`, since it may be interrupted in the middle of a file.
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
    """Context in which `write_file` writes each file of tensors that transformers saves in this
    thread. Checked on transformers 5.23.
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


def renames_any(module: Any, names: Iterable[str]) -> bool:
    """Whether transformers renames, merges or splits any tensor of these names when it loads a
    checkpoint of `module`; old names of all models (``LayerNorm.gamma``) included.
    """
    from transformers import conversion_mapping

    found = conversion_mapping.get_model_conversion_mapping(module)
    return any(each.rename_source_key(name)[0] != name for name in names for each in found)


def read_pretrained(
    module: Any, folder: str | os.PathLike[str]
) -> tuple[dict[str, torch.Tensor], dict[str, Shape]]:
    """Read a checkpoint whose tensors are renamed, merged or split, with ``from_pretrained``, which
    needs memory for the whole model.

    Returns:
        The values, by names of ``module.state_dict()``; and the shapes of unused tensors.

    Raises:
        CheckpointError: if the checkpoint cannot be read.
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
