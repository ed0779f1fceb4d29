"""Run on two ranks: one program at one place. Prints what came of it, in one line."""

from __future__ import annotations

import faulthandler
import os
import re
import tempfile
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.frameworks.program import PROGRAMS, Run

SECONDS = 60
TIMEOUT = timedelta(seconds=2 * SECONDS)  # longer: a collective that nobody joins is a hang


def main(name: str, place: str, folder: str) -> None:
    faulthandler.dump_traceback_later(SECONDS - 5)  # what hangs is killed soon after
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("error", message=".*no-op")  # of load_state_dict, for meta tensors
    rank = dist.get_rank()
    os.environ.update(launched_by_torchrun(rank))
    oracle = Path(folder) / f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}.{rank}"
    try:
        with tempfile.TemporaryDirectory() as scratch:
            shared = [scratch]
            dist.broadcast_object_list(shared)
            result = PROGRAMS[name].run(Run(place, rank, shared[0]))
            dist.barrier()
    except BaseException as error:
        traceback.print_exc()
        print(error_line(error), flush=True)
        raise
    if place == "eager":
        torch.save(tuple(result), oracle)
        print("equal", flush=True)
    else:
        losses, weights = torch.load(oracle)
        print(compare(result.losses, result.weights, losses, weights), flush=True)


def launched_by_torchrun(rank: int) -> dict[str, str]:
    """The environment by which frameworks recognise that their processes are there already."""
    size = str(dist.get_world_size())
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), size)
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "GROUP_RANK": "0"}
    return {**ranks, **sizes, **address, "TORCHELASTIC_RUN_ID": "none"}


def error_line(error: BaseException) -> str:
    """Whether the error, or one that caused it, says what to do."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    text = " ".join(str(e) for e in chain)
    if re.search("closed by peer|Connection reset|Broken pipe", text):
        return "lost the other rank"
    kind = "error" if "materialize" in text.lower() else "ERROR WITHOUT ADVICE"
    return f"{kind}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def compare(losses, weights, expected_losses, expected_weights) -> str:
    """Whether two runs have left the same, bit for bit."""
    if weights.keys() != expected_weights.keys():
        return f"OTHER NAMES: {sorted(weights.keys() ^ expected_weights.keys())[:4]}"
    other = [n for n, t in weights.items() if not torch.equal(t, expected_weights[n])]
    if other:
        return f"OTHER WEIGHTS: {other[:4]}"
    return "equal" if losses == expected_losses else f"OTHER LOSSES: {losses} {expected_losses}"
