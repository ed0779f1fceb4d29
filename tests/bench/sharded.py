"""One rank's shard of eight: part of ``nox -s bench``, and ``--only-sharded`` alone.

Each figure is of a fresh process, which is one rank of a fake process group.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
RANKS = 8
CASES = {
    "FSDP2": "fsdp",
    "tensor parallel": "tensor_parallel",
    "FSDP2 along the last dimension": "by_columns",
}


def report(rounds: int) -> None:
    whole = [measured("whole", 0) for _ in range(rounds)]
    seconds = statistics.median(each["seconds"] for each in whole)
    size = whole[0]["bytes"]
    print(
        f"\nOne shard of {RANKS} of a Llama of {size / 1e9:.2f} GB (float32, 4 layers); the whole "
        f"takes {seconds:.2f} s of CPU time\n"
    )
    print("| | CPU time, s | to 1/8 of the whole x 1.2 + 0.3 s | shard, GB | peak over it, GB |")
    print("|---|---|---|---|---|")
    allowed = seconds / RANKS * 1.2 + 0.3
    for name, how in CASES.items():
        found = [measured(how, rank) for rank in (0, 3, 7) for _ in range(max(1, rounds // 2))]
        taken = statistics.median(each["seconds"] for each in found)
        over = max(each["peak"] - each["bytes"] for each in found)
        print(
            f"| {name} | {taken:.2f} | {taken / allowed:.2f} | {found[0]['bytes'] / 1e9:.2f} | "
            f"{over / 1e9:.2f} |",
            flush=True,
        )


def measured(how: str, rank: int) -> dict[str, Any]:
    command = [sys.executable, os.path.join(FOLDER, "sharded.py"), how, str(rank)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


# In the process of one rank.


def one_rank(how: str, rank: int) -> None:
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import torchfake

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    shard = globals()[how]
    small = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, vocab_size=640,
        num_attention_heads=8,
    )  # fmt: skip
    large = transformers.LlamaConfig(num_hidden_layers=4)
    for config in (small, large):  # the first is not counted: imports, and what torch is seen to do
        torch.manual_seed(0)
        model = torchfake.deferred_init(transformers.LlamaForCausalLM, config)
        shard(model, mesh)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        before, start = resident("VmRSS"), time.process_time()
        torchfake.materialize_module(model, progress=False)
        seconds, peak = time.process_time() - start, resident("VmHWM") - before
    tensors = [getattr(t, "_local_tensor", t) for t in model.parameters()]
    size = sum(t.numel() * t.element_size() for t in tensors)
    print(json.dumps({"seconds": seconds, "peak": peak, "bytes": size}))


def resident(what: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{what}:")[1].split()[0]) * 1024


def whole(model: Any, mesh: Any) -> None:
    pass


def fsdp(model: Any, mesh: Any, **options: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def by_columns(model: Any, mesh: Any) -> None:
    from torch.distributed.tensor import Shard

    fsdp(model, mesh, shard_placement_fn=lambda parameter: Shard(parameter.dim() - 1))


def tensor_parallel(model: Any, mesh: Any) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    import models

    models.llama_parallelized(model, mesh)
    ends = {"model.embed_tokens": RowwiseParallel(), "lm_head": ColwiseParallel()}
    parallelize_module(model, mesh, ends)


if __name__ == "__main__":
    one_rank(sys.argv[1], int(sys.argv[2]))
