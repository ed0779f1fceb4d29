"""Scripts run by torchrun, on gloo and this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def torchrun(script: str, num_ranks: int, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder on so many ranks; what it printed, and how it ended."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(num_ranks), str(FOLDER / script), *args,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def printed(script: str, num_ranks: int, *args: str) -> list[str]:
    """The lines that it printed, if it ended well."""
    done = torchrun(script, num_ranks, *args)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout.splitlines()


def on_their_own(script: str, num_ranks: int, *args: str) -> list[str]:
    """What each rank printed, without a torchrun that ends all of them with the first."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(num_ranks)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(FOLDER / script), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **where, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(num_ranks)
    ]
    return [rank.communicate(timeout=120)[0] for rank in ranks]
