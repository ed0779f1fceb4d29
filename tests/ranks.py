"""Worker modules run on several ranks, on gloo and this machine.

One process imports the worker modules and forks the ranks of each launch: importing torch takes
longer than most of what a rank does in these tests. Each rank joins a process group and calls the
``main`` of its module; what it prints is read afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 600  # of all launches of a call together


class Launch(NamedTuple):
    """One run of a worker module.

    If `independent`, the end of one rank does not end the others.
    """

    module: str  # such as "tests._sharding.worker_weights"
    num_ranks: int
    args: tuple[str, ...] = ()
    independent: bool = False


class Finished(NamedTuple):
    """What a launch has left."""

    exit_codes: list[int]  # by rank; the negative number of a signal that ended it
    lines: list[list[str]]  # that each rank printed
    errors: str  # the end of what they wrote to stderr

    def printed(self) -> list[str]:
        """The lines of the first rank, if all ranks ended well."""
        assert not any(self.exit_codes), self.errors
        return self.lines[0]


def run_launches(launches: list[Launch], folder: Path) -> None:
    """Run them one after the other; :func:`finished` reads what they have left in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "launches.json").write_text(json.dumps(launches))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (folder / "launcher").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.ranks", str(folder)],
            stderr=errors,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        code = process.wait(TIMEOUT_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of them have ended
            os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, (folder / "launcher").read_text()


def finished(folder: Path, number: int) -> Finished:
    """What the launch of that number has left in `folder`."""
    codes = json.loads((folder / f"{number}.codes").read_text())
    lines = [(folder / f"{number}.{rank}").read_text().splitlines() for rank in range(len(codes))]
    return Finished(codes, lines, (folder / f"{number}.errors").read_text()[-5000:])


def once_per_session(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]
) -> Path:
    """The folder of that name, which `make` has filled: called in one process of pytest-xdist, for
    which the others wait.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder


# In the process that forks.


def _launch_all(folder: Path) -> None:
    launches = [Launch(*fields) for fields in json.loads((folder / "launches.json").read_text())]
    importlib.import_module("torch._dynamo")  # some operators would import it in every rank
    for launch in launches:
        importlib.import_module(launch.module)
    gc.collect()
    gc.freeze()  # a collection would write to what the ranks share with this process, and copy it
    for number, launch in enumerate(launches):
        codes = _launch(launch, folder, str(number))
        (folder / f"{number}.codes").write_text(json.dumps(codes))


def _launch(launch: Launch, folder: Path, name: str) -> list[int]:
    """Exit codes of the ranks."""
    with socket.create_server(("localhost", 0)) as server:
        ranks = {}
        for rank in range(launch.num_ranks):
            process = os.fork()
            if process == 0:
                _run_rank(launch, rank, server, folder, name)
            ranks[process] = rank
    codes = [0] * launch.num_ranks
    while ranks:
        process, status = os.wait()
        code = codes[ranks.pop(process)] = os.waitstatus_to_exitcode(status)
        if code and not launch.independent:
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return codes


def _run_rank(launch: Launch, rank: int, server: socket.socket, folder: Path, name: str) -> None:
    """Run the module's ``main`` and end this process."""
    code = 1
    try:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        for path, stream in ((f"{name}.{rank}", sys.stdout), (f"{name}.errors", sys.stderr)):
            os.dup2(os.open(folder / path, append), stream.fileno())
        module = importlib.import_module(launch.module)
        _join(rank, launch.num_ranks, server, getattr(module, "TIMEOUT", None))
        module.main(*launch.args)
        if not launch.independent:
            dist.barrier()  # the first rank has the store that the others may need
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # past what would wait for ranks that are gone


def _join(rank: int, num_ranks: int, server: socket.socket, timeout: timedelta | None) -> None:
    host, port = server.getsockname()[:2]
    options: dict[str, Any] = {"master_listen_fd": server.detach()} if rank == 0 else {}
    store = dist.TCPStore(host, port, num_ranks, is_master=rank == 0, **options)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=timeout)


if __name__ == "__main__":
    _launch_all(Path(sys.argv[1]))
