"""Scripts in processes of their own that start with torch and transformers imported.

Imports take longer than most examples run. So one server process imports what the examples import,
and the process of each example is forked from it: its namespace, its folder, its environment and
its memory are its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import sys
import warnings
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

_processes = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    _processes.set_forkserver_preload(["torchfake", "transformers.models.llama.modeling_llama"])


class Finished(NamedTuple):
    """How a process ended, and what it printed."""

    exit_code: int | None
    stdout: str
    stderr: str


def run_script(script: Path, folder: Path) -> Finished:
    """Run a script in `folder`."""
    (finished,) = _run([{}], script, folder)
    return finished


def run_ranks(script: Path, folder: Path, *, num_ranks: int) -> list[Finished]:
    """Run a script on some ranks, with the variables that torchrun sets, on one thread each."""
    with _rendezvous() as variables:
        ranks = [
            {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
            for rank in range(num_ranks)
        ]
        return _run(ranks, script, folder)


@contextlib.contextmanager
def _rendezvous() -> Iterator[dict[str, str]]:
    """The variables by which ranks find each other, at a store of this process as of torchrun's."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    yield {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def _run(environments: list[dict[str, str]], script: Path, folder: Path) -> list[Finished]:
    """Run a script once in each environment, at the same time."""
    outputs = [folder / f"output-{index}" for index in range(len(environments))]
    running: list[BaseProcess] = []
    for environment, output in zip(environments, outputs, strict=True):
        output.mkdir()
        process = _processes.Process(target=_execute, args=(script, folder, output, environment))
        process.start()
        running.append(process)
    try:
        for process in running:
            process.join(timeout=300)
    finally:
        for process in running:
            process.kill()  # if it has not ended by then
            process.join()
    return [
        Finished(process.exitcode, (output / "stdout").read_text(), (output / "stderr").read_text())
        for process, output in zip(running, outputs, strict=True)
    ]


def _execute(script: Path, folder: Path, output: Path, environment: dict[str, str]) -> None:
    """Run a script as Python runs it, in this process; warnings of torchfake are errors."""
    os.chdir(folder)
    os.environ.update(environment)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        with open(output / name, "w") as file:
            os.dup2(file.fileno(), descriptor)
    if "RANK" in environment:
        torch.set_num_threads(1)
    warnings.filterwarnings("error", module=r"torchfake(\.|$)")
    sys.argv = [str(script)]
    runpy.run_path(str(script), run_name="__main__")
