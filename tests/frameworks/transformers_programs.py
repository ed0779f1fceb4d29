"""transformers: tensor parallelism by the model's own plan, and its FSDP2."""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

from tests.frameworks.program import Result, Run, program, whole_weights


def config() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=32, max_position_embeddings=32,
    )  # fmt: skip


def train(run: Run, distributed: DistributedConfig) -> Result:
    distributed, _, meshes = LlamaForCausalLM.prepare_distribute_model(distributed)
    model = run.build(lambda: LlamaForCausalLM(config()))
    model = LlamaForCausalLM.maybe_distribute_model(model, distributed, meshes)
    run.materialize("after", model)
    return Result(run.train(model), whole_weights(model))


@program("transformers, tp_plan", "equal", "-", "equal", "error")
def tensor_parallel(run: Run) -> Result:
    run.rank = 0  # the same tokens
    return train(run, DistributedConfig(tp_plan="auto", tp_size=2))


@program("transformers, fsdp_size", "equal", "-", "equal", "error")
def fsdp(run: Run) -> Result:
    return train(run, DistributedConfig(fsdp_size=2))
