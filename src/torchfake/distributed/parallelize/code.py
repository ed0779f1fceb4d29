"""The code of a layout: the function ``parallelize(model, mesh)``, and the call.

Input: the axes of a mesh, options, and a model. Output: the text of the function and of the call.
Invariant: a plan runs this text and no other code.
"""

from __future__ import annotations

from torch import nn

from torchfake.distributed.parallelize.blocks import Blocks, repeated_blocks
from torchfake.distributed.parallelize.checkpoints import checkpoint_blocks
from torchfake.distributed.parallelize.context_parallel import split_contexts
from torchfake.distributed.parallelize.data_parallel import (
    INFERENCE,
    replica_mesh,
    share_data,
    wrap_flat_shards,
    wrap_replicas,
)
from torchfake.distributed.parallelize.expert_parallel import (
    expert_modules,
    split_experts,
    without_experts,
)
from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.pipeline_parallel import (
    check_parts,
    parts_of,
    write_pipeline,
)
from torchfake.distributed.parallelize.pipeline_stages import PipelineSchedule
from torchfake.distributed.parallelize.sequence_parallel import split_sequences
from torchfake.distributed.parallelize.tensor_parallel import (
    TensorRules,
    needs_heads,
    repeat_heads,
    split_tensors,
)
from torchfake.distributed.parallelize.writer import Code

MESH_IMPORT = "from torch.distributed.device_mesh import init_device_mesh"

_NO_CACHE = """for part in model.modules():
    if getattr(getattr(part, "config", None), "use_cache", False):
        part.config.use_cache = False  # of keys and values, for generation"""


def code_of(
    module: nn.Module,
    axes: MeshAxes,
    *,
    rules: TensorRules | None,
    checkpoint: str | int,
    is_mixed: bool,
    zero: int,
    offload: bool,
    splits_sequence: bool = False,
    schedule: PipelineSchedule | None = None,
    num_microbatches: int = 1,
    engine: str = "fsdp2",
) -> Code:
    """Generate the code of ``parallelize(model, mesh)`` for this model.

    Raises:
        InputsError: if the model does not support an option.
    """
    code, blocks = Code({"import torch"}), repeated_blocks(module)
    if engine != INFERENCE:
        _without_cache(code, module)
    if axes.context_ranks > 1:
        split_contexts(code, module, axes)
    has_experts = axes.expert_ranks > 1
    if engine == INFERENCE and axes.experts:  # over the ranks of tp alone, which share tokens
        has_experts = axes.expert_ranks * axes.tensor_ranks > 1
    experts = expert_modules(module, axes) if has_experts else None
    if rules is not None and experts is not None:
        rules = without_experts(rules, experts, module)
    if rules is not None and splits_sequence:
        split_sequences(code, axes, rules, module, blocks)
    elif rules is not None:
        if engine == INFERENCE and needs_heads(module, rules.styles, axes.tensor_ranks):
            repeat_heads(code, axes)
        split_tensors(code, axes, rules)
    if experts is not None:
        split_experts(code, axes, experts)
    stage, parts = code, None
    if schedule is not None:
        parts = parts_of(module)
        check_parts(module, parts, axes.pipeline_ranks * schedule.stages_per_rank)
        if not parts.layers:  # an nn.Sequential
            blocks = [Blocks("", "", tuple(dict(module.named_children())), True)]
        stage = Code()
    if checkpoint != "none":
        checkpoint_blocks(stage, module, blocks, checkpoint)
    root = "model" if parts is None else "stage"
    if engine == "ddp":
        wrap_replicas(stage, axes)
    elif engine == "fsdp1":
        wrap_flat_shards(stage, axes, blocks, is_mixed, zero, offload)
    elif engine != INFERENCE:
        share_data(stage, axes, blocks, is_mixed, zero, offload, experts, root)
    if schedule is not None and parts is not None:
        write_pipeline(code, stage, parts, axes, schedule, num_microbatches)
    elif "torch." not in code.text().replace("from torch.", ""):
        code.imports.remove("import torch")
    return code


def optimizer_text(axes: MeshAxes) -> str:
    """The line that creates an optimizer whose state is sharded over the ranks (ZeRO-1)."""
    kind = "torch.optim.AdamW"  # an example: any class of torch.optim works
    return (
        "optimizer = ZeroRedundancyOptimizer(\n"
        f"    model.parameters(), {kind}, process_group={replica_mesh(axes)}.get_group()\n"
        ")\n"
    )


def call_text(axes: MeshAxes, device: str) -> str:
    """The lines that create the mesh, and call the function."""
    sizes, names = tuple(axes.sizes.values()), tuple(axes.sizes)
    named = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
    return (
        f'mesh = init_device_mesh("{device}", {sizes}, mesh_dim_names=({named}))\n'
        f"{'model' if axes.pipeline_ranks == 1 else 'schedule'} = parallelize(model, mesh)\n"
    )


def _without_cache(code: Code, module: nn.Module) -> None:
    """Add a line that disables the KV cache, to which recomputation would append twice."""
    configs = (getattr(part, "config", None) for part in module.modules())
    if any(getattr(config, "use_cache", False) is True for config in configs):
        code.lines += _NO_CACHE.splitlines()
