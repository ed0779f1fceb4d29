"""Initialise a model straight into files, then start another from them: no step holds a whole copy.

The model is deferred, so that nothing is allocated when it is built. Its weights are written block
by block, as eager construction would have drawn them. A classifier with a new head reads them, and
the head, which the files lack, gets the values that eager construction would have given it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from torchfake import deferred_init, is_deferred, materialize_module, save_materialized

config = LlamaConfig(
    num_hidden_layers=8,
    hidden_size=512,
    intermediate_size=1536,
    num_attention_heads=8,
    vocab_size=32000,
    pad_token_id=0,
)

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    torch.manual_seed(0)
    model = deferred_init(LlamaForCausalLM, config)
    save_materialized(model, folder, max_shard_size="50MB", progress=False)
    assert is_deferred(model)  # nothing of it was kept
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    print(f"{len(files)} files, {size / 1e6:.0f} MB")

    # What transformers reads are the weights of eager construction.
    loaded = LlamaForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    eager = LlamaForCausalLM(config)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), eager.parameters(), strict=True)
    )

    # A second call has nothing to do; another seed is not written over the first.
    before = [file.stat().st_mtime_ns for file in files]
    save_materialized(model, folder, max_shard_size="50MB", progress=False)
    assert [file.stat().st_mtime_ns for file in files] == before

    # Another model takes what fits, and replays the rest.
    torch.manual_seed(1)
    fresh = LlamaForSequenceClassification(config)
    torch.manual_seed(1)
    classifier = deferred_init(LlamaForSequenceClassification, config)
    state = {k: v for k, v in loaded.state_dict().items() if k != "lm_head.weight"}
    materialize_module(classifier, checkpoint=state)
    assert torch.equal(classifier.score.weight, fresh.score.weight)
    assert torch.equal(classifier.model.norm.weight, eager.model.norm.weight)
    assert torch.equal(classifier.model.embed_tokens.weight, eager.model.embed_tokens.weight)
print("equal to eager, bit for bit")
