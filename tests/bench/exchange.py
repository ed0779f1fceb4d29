"""CPU time of 8 ranks that exchange rows: ``torchrun --nproc-per-node 8 tests/bench/exchange.py``.

For each way to shard that has columns: without the exchange and with it, the median over the ranks,
of the Llama of sharded.py.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh

import sharded
import torchfake


def seconds(how: str, exchange: bool, config: transformers.LlamaConfig) -> float:
    """CPU time of this process, the threads of gloo included."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = torchfake.deferred_init(transformers.LlamaForCausalLM, config)
    getattr(sharded, how)(model, mesh)
    dist.barrier()
    start = time.process_time()
    torchfake.materialize_module(model, progress=False, exchange=exchange)
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    small = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=1, vocab_size=640,
        num_attention_heads=8,
    )  # fmt: skip
    for how in ("tensor_parallel", "by_columns"):
        for exchange in (False, True):
            seconds(how, exchange, small)  # not counted: imports
            taken: list[float] = [0.0] * dist.get_world_size()
            own = seconds(how, exchange, transformers.LlamaConfig(num_hidden_layers=4))
            dist.all_gather_object(taken, own)
            if dist.get_rank() == 0:
                print(f"{how}, exchange={exchange}: {statistics.median(taken):.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
