"""Tensor parallelism before the weights exist: each rank computes its own slices only.

Run it: ``torchrun --nproc-per-node 2 examples/tensor_parallel.py``. It needs transformers and no
GPU.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from transformers import LlamaConfig, LlamaForCausalLM

from torchfake import deferred_init, graph, materialize_module

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))

config = LlamaConfig(
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=1000,
)
torch.manual_seed(0)
model = deferred_init(LlamaForCausalLM, config)

# The first matrices of each block are split by columns, the last by rows.
columns, rows = ColwiseParallel, RowwiseParallel
plan = {
    "self_attn.q_proj": columns(),
    "self_attn.k_proj": columns(),
    "self_attn.v_proj": columns(),
    "self_attn.o_proj": rows(),
    "mlp.gate_proj": columns(),
    "mlp.up_proj": columns(),
    "mlp.down_proj": rows(),
}
for layer in model.model.layers:
    parallelize_module(layer, mesh, plan)

# No weights were sent to other ranks: each rank's record holds its own slice.
up = model.model.layers[0].mlp.up_proj.weight
if dist.get_rank() == 0:
    print(graph(up.to_local()))
materialize_module(model, device=device)
assert up.to_local().shape == (704 // mesh.size(), 256)

torch.manual_seed(0)
eager = LlamaForCausalLM(config).to(device)
for (name, expected), made in zip(eager.named_parameters(), model.parameters(), strict=True):
    whole = made.full_tensor() if hasattr(made, "full_tensor") else made
    assert torch.equal(whole.cpu(), expected.cpu()), name

# The same logits up to rounding: the ranks' partial sums are added in another order.
tokens = torch.arange(24, device=device).view(2, 12)
scores = model(input_ids=tokens).logits
torch.testing.assert_close(scores, eager(input_ids=tokens).logits, rtol=1e-4, atol=1e-5)
print(f"rank {dist.get_rank()} agrees with the eager model")
dist.destroy_process_group()
