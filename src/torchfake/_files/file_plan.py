"""Which tensor goes to which file, decided before anything is written.

Input: the tensors of a module by name, and the maximal size of a file. Output: a :class:`Plan`: the
files, the names in each, and the contents of the files that hold no tensors, such as the index.
Invariant: names, ties and sizes are taken from the unsharded module, so its files do not depend on
how the module is sharded; no value is computed.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from torchfake._files.directory import INDEX
from torchfake._files.state_dict import State
from torchfake._files.transformers_checkpoints import pretrained_files
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import subclass
from torchfake._torch.distributed import dtensors
from torchfake.errors import CheckpointError, MissingExtraError
from torchfake.fake import fake_mode


class PlannedFile(NamedTuple):
    """A file of tensors that is to be written."""

    name: str
    sources: dict[str, str]  # name in the file -> name in the module's state dict
    metadata: dict[str, str]


class Plan(NamedTuple):
    """All files of a save."""

    files: list[PlannedFile]
    others: dict[str, bytes]  # contents of the files that hold no tensors, by name


def plan_files(state: State, max_file_bytes: int) -> Plan:
    """Plan the files of any module. Tied tensors are saved once, under their first name."""
    tensors, ties = _without_ties(state)
    split = _split(tensors, max_file_bytes)
    files = [
        PlannedFile(
            name,
            {n: n for n in names},
            {**{tied: first for tied, first in ties.items() if first in names}, "format": "pt"},
        )
        for name, names in split.filename_to_tensors.items()
    ]
    if not split.is_sharded:
        return Plan(files, {})
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    return Plan(files, {INDEX: (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()})


def _without_ties(state: State) -> tuple[State, dict[str, str]]:
    """Keep one name of each tensor. Also returns the first name for each name left out, which
    ``safetensors.torch.save_model`` puts in the metadata.
    """
    first_names: dict[Any, str] = {}
    ties = {}
    for name, tensor in state.items():
        place = (
            subclass.storage_key(tensor.untyped_storage()),
            tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype,
        )  # fmt: skip
        first = first_names.setdefault(place, name) if tensor.numel() else name
        if first != name:
            ties[name] = first
    return {name: tensor for name, tensor in state.items() if name not in ties}, ties


def _split(tensors: State, max_file_bytes: int) -> Any:
    try:
        from huggingface_hub import split_state_dict_into_shards_factory
    except ImportError:
        raise MissingExtraError(
            'save_materialized needs huggingface_hub: pip install "torchfake[files]"'
        ) from None
    return split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_file_bytes,
    )


# Sharded modules.


def full_fakes(state: State) -> dict[str, FakeTensor]:
    """A fake of the full shape for each tensor; tied tensors share one fake."""
    by_place: dict[Any, Any] = {}
    fakes = {}
    with fake_mode():
        for name, tensor in state.items():
            local = dtensors.local_tensor_of(tensor)
            place = (
                subclass.storage_key(local.untyped_storage()), local.storage_offset(), local.shape,
                local.stride(), tensor.shape, tensor.dtype,
            )  # fmt: skip
            if place not in by_place:
                by_place[place] = torch.empty(tensor.shape, dtype=tensor.dtype)
            fakes[name] = by_place[place]
    return fakes


def plan_pretrained_files(
    module: Any, folder: Path, fakes: dict[str, FakeTensor], max_file_bytes: int
) -> Plan:
    """Plan the files of a sharded transformers model, by running its ``save_pretrained`` on fakes
    of the full tensors.

    Raises:
        CheckpointError: for a tensor that ``save_pretrained`` merges or splits.
    """
    recorder = _WriteRecorder(fakes)
    on_fakes = partial(module.save_pretrained, state_dict=dict(fakes))
    unsharded = SimpleNamespace(save_pretrained=on_fakes)
    others = pretrained_files(unsharded, folder, max_file_bytes, recorder.write)
    return Plan(recorder.files, others)


class _WriteRecorder:
    """Replaces the function that writes a file of tensors, and records the files as planned."""

    def __init__(self, fakes: dict[str, FakeTensor]) -> None:
        self.files: list[PlannedFile] = []
        self._names = {id(fake._fake_storage): name for name, fake in reversed(fakes.items())}
        self._fakes = fakes

    def write(self, tensors: State, name: str, metadata: dict[str, str]) -> None:
        sources = {name: self._source(name, tensor) for name, tensor in tensors.items()}
        self.files.append(PlannedFile(name, sources, metadata))

    def _source(self, name: str, tensor: Any) -> str:
        source = self._names.get(id(getattr(tensor, "_fake_storage", None)))
        if source is None or tensor._fake_meta is not self._fakes[source]._fake_meta:
            raise CheckpointError(
                f"{name} would be merged or split from several tensors by save_pretrained, which "
                "shards cannot be: save the module before it is sharded, or save its shards with "
                "torch.distributed.checkpoint"
            )
        return source
