"""Train a model with FSDP2, starting from eager's weights, without any rank holding all of them.

Run it: ``torchrun --nproc-per-node 2 examples/fsdp2.py``. It needs transformers. Without
GPUs, gloo takes the place of NCCL.
"""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from torchfake import deferred_init, is_deferred, materialize_module

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
rank, num_ranks = mesh.get_local_rank(), mesh.size()

config = LlamaConfig(
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=1000,
)


def build() -> LlamaForCausalLM:
    """Every rank records the same program, from the same random state."""
    torch.manual_seed(0)
    model = deferred_init(LlamaForCausalLM, config)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


# The model is sharded but not yet allocated. Now each rank computes its own shards only.
model = build()
assert is_deferred(model)
materialize_module(model, device=device)
whole = sum(p.numel() for p in model.parameters())
mine = sum(p.to_local().numel() for p in model.parameters())
print(f"rank {rank} has {mine:,} of {whole:,} values")
assert mine <= whole // num_ranks + len(list(model.parameters())) * 256

# Together, the shards are the eager model's weights, for any number of ranks.
torch.manual_seed(0)
eager = LlamaForCausalLM(config)
for (name, expected), made in zip(eager.named_parameters(), model.parameters(), strict=True):
    assert isinstance(made, DTensor)
    assert torch.equal(made.full_tensor().cpu(), expected), name

# It trains like any other module.
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.arange(24, device=device).view(2, 12) + rank
for _ in range(3):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# A torch.distributed checkpoint can be loaded into another deferred model, on any number of ranks.
folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)
dcp.save(model.state_dict(), checkpoint_id=folder[0])
again = materialize_module(build(), device=device)
state = again.state_dict()
dcp.load(state, checkpoint_id=folder[0])
for one, other in zip(model.parameters(), again.parameters(), strict=True):
    assert torch.equal(one.to_local(), other.to_local())

dist.destroy_process_group()
