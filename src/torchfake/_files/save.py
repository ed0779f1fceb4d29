"""One save, from the tensors of a module to a finished directory.

Input: a module, and the tensors of its state. Output: safetensors files and their index, as
``save_pretrained`` writes them. Invariant: the steps are the same for all modules: digest the
tensors, prepare the directory, plan the files, write each file that is not complete, write the
index last, remove files that an earlier call left. For a sharded module the first rank plans, and
all ranks write.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from torchfake._files.directory import OutputDirectory
from torchfake._files.disk import reported
from torchfake._files.file_plan import Plan, full_fakes, plan_files, plan_pretrained_files
from torchfake._files.state_dict import (
    State,
    check_ranks,
    digest_of,
    digest_on_all_ranks,
    is_sharded,
)
from torchfake._files.transformers_checkpoints import is_transformers_model, pretrained_files
from torchfake._files.write import Advance, SharedFileWriter, num_bytes_to_write, write_file
from torchfake._sharding.shared_errors import on_first_rank
from torchfake._torch.contexts import holding


class Options(NamedTuple):
    """How a module is saved; see :func:`torchfake.save_materialized`."""

    max_file_bytes: int
    num_threads: int | None
    advance: Advance


def num_bytes_of(state: State) -> int:
    """The number of bytes that this process writes."""
    if is_sharded(state):
        return num_bytes_to_write(state.values())
    return sum(tensor.nbytes for tensor in state.values())


def save(module: torch.nn.Module, state: State, folder: Path, options: Options) -> None:
    """Write the tensors of `module`, given by name in `state`, to the directory `folder`."""
    options = options._replace(advance=_locked(options.advance))
    save_state = _save_on_all_ranks if is_sharded(state) else _save_in_one_process
    with reported(folder):
        save_state(module, state, folder, options)


def _locked(advance: Advance) -> Advance:
    """Wrap `advance` in a lock, so that several threads may call it."""
    lock = threading.Lock()

    def locked(num_bytes: int) -> None:
        with holding(lock):
            advance(num_bytes)

    return locked


def _save_in_one_process(
    module: torch.nn.Module, state: State, folder: Path, options: Options
) -> None:
    with OutputDirectory(folder, digest_of(state)) as directory:
        directory.prepare()

        def write(tensors: State, name: str, metadata: dict[str, str]) -> None:
            if directory.is_complete(name, set(tensors)):
                options.advance(sum(tensor.nbytes for tensor in tensors.values()))
                return
            metadata = directory.with_digest(metadata)
            threads, advance = options.num_threads, options.advance
            write_file(folder / name, tensors, metadata, num_threads=threads, advance=advance)

        if is_transformers_model(module):  # save_pretrained plans the files and the index itself
            others = pretrained_files(module, folder, options.max_file_bytes, write)
        else:
            plan = plan_files(state, options.max_file_bytes)
            for file in plan.files:
                tensors = {name: state[source] for name, source in file.sources.items()}
                write(tensors, file.name, file.metadata)
            others = plan.others
        directory.finish(others)


def _save_on_all_ranks(
    module: torch.nn.Module, state: State, folder: Path, options: Options
) -> None:
    check_ranks(state)
    with OutputDirectory(folder, digest_on_all_ranks(state)) as directory:
        plan = on_first_rank(lambda: _prepared(directory, module, state, options))
        threads, advance = options.num_threads, options.advance
        writer = SharedFileWriter(folder, state, num_threads=threads, advance=advance)
        for file in plan.files:
            if on_first_rank(partial(directory.is_complete, file.name, set(file.sources))):
                advance(num_bytes_to_write(state[source] for source in file.sources.values()))
            else:
                writer.write(file._replace(metadata=directory.with_digest(file.metadata)))
        on_first_rank(lambda: directory.finish(plan.others))


def _prepared(
    directory: OutputDirectory, module: torch.nn.Module, state: State, options: Options
) -> Plan:
    directory.prepare()
    fakes = full_fakes(state)
    if is_transformers_model(module):
        return plan_pretrained_files(module, directory.path, fakes, options.max_file_bytes)
    return plan_files(dict(fakes), options.max_file_bytes)
