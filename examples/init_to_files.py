"""Initialize a model directly into files, then load another model from them, never in memory whole.

The model is deferred, so that nothing is allocated when it is built. Its weights are written block
by block, with the values of eager initialization. A classifier with a new head then loads them; the
head, which is not in the files, gets the values that eager initialization would have given it.
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
    assert is_deferred(model)  # it has not been materialized
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    print(f"{len(files)} files, {size / 1e6:.0f} MB")

    # transformers loads the weights that eager initialization gives.
    loaded = LlamaForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    eager = LlamaForCausalLM(config)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), eager.parameters(), strict=True)
    )

    # A second call does nothing; files of another seed are not overwritten.
    before = [file.stat().st_mtime_ns for file in files]
    save_materialized(model, folder, max_shard_size="50MB", progress=False)
    assert [file.stat().st_mtime_ns for file in files] == before

    # Another model loads the weights it shares and initializes the rest.
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
