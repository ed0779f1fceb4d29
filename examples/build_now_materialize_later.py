"""Build a model without allocating it, edit it, and materialize it in parts, with eager's values.

Run it: ``python examples/build_now_materialize_later.py``. It needs transformers.
"""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from torchfake import deferred_init, dematerialize_module, graph, is_deferred, materialize_module

config = LlamaConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    vocab_size=1000,
)

# Building the model records the initialization and allocates no weights.
torch.manual_seed(0)
model = deferred_init(LlamaForCausalLM, config)
assert is_deferred(model)

# Changes to a deferred model are recorded too: casts, edits, weights from a checkpoint.
model = model.to(torch.bfloat16)
with torch.no_grad():
    model.lm_head.weight[0] = 0
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
print(graph(model.lm_head.weight))

# One layer first, then the rest. The optimizer's parameters are the same objects, now real.
materialize_module(model.model.layers[3])
assert not is_deferred(model.model.layers[3])
assert is_deferred(model)
materialize_module(model)

torch.manual_seed(0)
eager = LlamaForCausalLM(config).to(torch.bfloat16)
with torch.no_grad():
    eager.lm_head.weight[0] = 0
for (name, expected), made in zip(eager.named_parameters(), model.parameters(), strict=True):
    assert torch.equal(made, expected), name

# The memory can be released again as long as the values have not been changed.
dematerialize_module(model)
assert is_deferred(model)
materialize_module(model)

tokens = torch.arange(24).view(2, 12)
loss = model(input_ids=tokens, labels=tokens).loss
loss.backward()
optimizer.step()
assert torch.equal(loss, eager(input_ids=tokens, labels=tokens).loss)
assert not torch.equal(model.lm_head.weight, eager.lm_head.weight)
