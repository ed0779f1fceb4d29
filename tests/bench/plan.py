"""A plan of a Llama of 70 billion parameters on 512 ranks, and a search of layouts: part of
``nox -s bench``.

The figure is of a fresh process, with its imports and all memory that it ever had.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

ALLOWED_SECONDS, ALLOWED_BYTES = 20, 2e9
ALLOWED_TO_SEARCH = 120


def report(rounds: int) -> None:
    found = [measured() for _ in range(max(1, rounds // 3))]
    seconds, plan_seconds = (
        statistics.median(each[name] for each in found) for name in ("all", "plan")
    )
    peak = max(each["peak"] for each in found)
    print(
        "\n`plan` of a Llama of 70 billion parameters, FSDP2 x tensor parallelism on 64 x 8 ranks, "
        "forward, backward, AdamW\n"
    )
    print("| | measured | allowed |")
    print("|---|---|---|")
    print(f"| `plan`, s | {plan_seconds:.1f} | {ALLOWED_SECONDS} |")
    print(f"| with imports, s | {seconds:.1f} | {ALLOWED_SECONDS} |")
    print(f"| peak memory of the process, GB | {peak / 1e9:.2f} | {ALLOWED_BYTES / 1e9:.0f} |")

    report_search(max(1, rounds // 3))


def report_search(rounds: int) -> None:
    found = [measured("search") for _ in range(rounds)]
    seconds = statistics.median(each["search"] for each in found)
    cpu = statistics.median(each["cpu"] for each in found)
    peak = max(each["peak"] for each in found)
    print("\n`search_layouts` of the same Llama on 64 H100, 4,096 tokens, a batch of 512\n")
    print("| | measured | allowed |")
    print("|---|---|---|")
    print(f"| layouts | {found[0]['layouts']} | |")
    print(f"| `search_layouts`, s | {seconds:.1f} | {ALLOWED_TO_SEARCH} |")
    print(f"| CPU time, s | {cpu:.1f} | |")
    print(f"| peak memory of the process, GB | {peak / 1e9:.2f} | {ALLOWED_BYTES / 1e9:.0f} |")


def measured(*what: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), *what],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


# In the process that is measured.


def main() -> None:
    start = time.perf_counter()
    import torch
    import transformers

    from torchfake.distributed import plan

    config = transformers.LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, vocab_size=128256,
        num_attention_heads=64, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip

    def build() -> Any:
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16)

    def inputs() -> dict[str, torch.Tensor]:
        tokens = torch.zeros(1, 4096, dtype=torch.int64)
        return {"input_ids": tokens, "labels": tokens}

    begin = time.perf_counter()
    found = plan(
        build,
        mesh_shape=(64, 8),
        parallelize=shard,
        inputs=inputs,
        optimizer="adamw",
        gpu="h100-80gb",
    )
    end = time.perf_counter()
    assert found.layout.num_ranks == 512
    assert len(str(found).splitlines()) > 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"plan": end - begin, "all": end - start, "peak": peak}))


def search() -> None:
    import warnings

    from torchfake.distributed import search_layouts

    warnings.simplefilter("ignore")
    begin, cpu = time.perf_counter(), time.process_time()
    found = search_layouts(
        "transformers:LlamaForCausalLM", gpus=64, batch=512, seq=4096, gpu="h100-80gb",
        overrides=(
            "hidden_size=8192", "intermediate_size=28672", "num_hidden_layers=80",
            "vocab_size=128256", "num_attention_heads=64", "num_key_value_heads=8",
        ),
    )  # fmt: skip
    taken = {"search": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    assert found.fastest is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**taken, "layouts": len(found.rows), "peak": peak}))


def shard(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    import models

    models.llama_parallelized(model, mesh["tp"])
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


if __name__ == "__main__":
    search() if sys.argv[1:] == ["search"] else main()
