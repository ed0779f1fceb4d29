"""Data parallelism: the lines that shard or replicate a model with FSDP2, FSDP1 or DDP.

Input: the axes, the blocks, options of the engine. Output: lines of ``parallelize``. Invariant:
FSDP2 shards blocks one at a time, and then the root; DDP and FSDP1 wrap the whole model in one
call, and support data-parallel axes only. For inference nothing is sharded or wrapped.
"""

from __future__ import annotations

import importlib.util

import torch

from torchfake.distributed.parallelize.blocks import Blocks
from torchfake.distributed.parallelize.expert_parallel import ExpertModules, shard_experts
from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.writer import Code, data_mesh, members
from torchfake.errors import InputsError

INFERENCE = "inference"
"""Instead of the name of an engine: no parameter gets a gradient."""

ENGINES = ("fsdp2", "fsdp1", "ddp", INFERENCE)
"""The names of the engines that shard or replicate a model."""

STAGES = {"fsdp2": (3, 2), "fsdp1": (3, 2), "ddp": (0, 1), INFERENCE: (0,)}
"""The ZeRO stages that each engine supports; the first is the default."""

_REPLICATE = "torch.distributed._composable.replicate_with_fsdp"


def check_engine(engine: str, axes: MeshAxes, zero: int, offload: bool) -> None:
    """Check that an engine supports the axes and options.

    Raises:
        InputsError: if not; the message names an alternative.
    """
    if zero not in STAGES[engine] or isinstance(zero, bool):
        stages = " or ".join(map(str, STAGES[engine]))
        others = [name for name in ENGINES if zero in STAGES[name]]
        remedy = f", or engine={others[0]!r}" if others and not isinstance(zero, bool) else ""
        raise InputsError(f"zero={zero!r} is not supported by {engine}: give {stages}{remedy}")
    if engine == "fsdp2":
        return
    if engine == INFERENCE:
        _check_inference(axes, offload)
        return
    names = axes.pipeline, axes.tensor, axes.context, axes.experts
    other = next((name for name in names if axes.sizes.get(name, 1) > 1), None)
    if other is not None:
        raise InputsError(
            f"{engine} supports the axis dp only, and the mesh has {other!r}: take fsdp2"
        )
    if axes.num_ranks == 1:
        raise InputsError(f"{engine} is for several ranks: give the mesh dp=2 or more")
    if engine == "ddp" and axes.sharding and axes.sizes.get(axes.replicate, 1) > 1:
        raise InputsError(f"ddp takes one axis: give {axes.shard}={axes.num_ranks} alone")
    if engine == "ddp" and offload:
        raise InputsError("ddp keeps parameters on the GPU: offload needs fsdp2 or fsdp1")
    if engine == "fsdp1" and not axes.sharding:
        raise InputsError("fsdp1 shards: give the mesh dp=2 or more, or take ddp")


def _check_inference(axes: MeshAxes, offload: bool) -> None:
    for axis, remedy in (
        (axes.shard, "replicate= is the number of copies of the model"),
        (axes.context, "leave it out"),
        (axes.pipeline, "give plan a parallelize= of your own"),
    ):
        if axes.sizes.get(axis, 1) > 1:
            raise InputsError(f"the axis {axis} is not for engine='inference': {remedy}")
    if offload:
        raise InputsError("offload needs FSDP2, which engine='inference' leaves out")


def share_data(
    code: Code,
    axes: MeshAxes,
    blocks: list[Blocks],
    is_mixed: bool,
    zero: int,
    offload: bool,
    experts: ExpertModules | None = None,
    root: str = "model",
) -> None:
    """Add the lines that shard the model with FSDP2, replicate it, or both. Experts, if given, are
    sharded along other axes than the rest.
    """
    if not axes.wraps_modules:
        return
    apply = "fully_shard" if axes.sharding else "replicate"
    options = [f"mesh={data_mesh(code, axes, axes.sharding)}"]
    imported = {"fully_shard"} if apply == "fully_shard" else set()
    if is_mixed:
        imported.add("MixedPrecisionPolicy")
        code.lines.append("policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)")
        options.append("mp_policy=policy")
    if offload:
        imported.add("CPUOffloadPolicy")
        options.append("offload_policy=CPUOffloadPolicy()")
    if zero == 2 and apply == "fully_shard":
        options.append("reshard_after_forward=False")
    if apply == "replicate":
        check_replicate()
        code.imports.add(f"from {_REPLICATE} import replicate")
    if imported:
        code.imports.add(f"from torch.distributed.fsdp import {', '.join(sorted(imported))}")
    if experts is not None:
        shard_experts(code, axes, experts, options[1:])
    given = ", ".join(options)
    for group in blocks:
        code.lines += [f"for block in {members(group)}:", f"    {apply}(block, {given})"]
    code.lines.append(f"{apply}({root}, {given})")


def check_replicate() -> None:
    """Check that this torch has an engine for replication that fakes can run."""
    if importlib.util.find_spec(_REPLICATE) is None:
        raise InputsError(
            f"torch {torch.__version__} has no {_REPLICATE}, and DistributedDataParallel reads "
            "parameters in C++: shard them (dp), or take torch 2.13 or newer"
        )


def wrap_replicas(code: Code, axes: MeshAxes) -> None:
    """Add the lines that wrap the whole model in DistributedDataParallel."""
    code.imports.add("from torch.nn.parallel import DistributedDataParallel")
    mesh = replica_mesh(axes)
    code.lines.append(f"model = DistributedDataParallel(model, device_mesh={mesh})")


def replica_mesh(axes: MeshAxes) -> str:
    """The Python expression of the mesh over which DDP replicates the model."""
    return f'mesh["{axes.shard or axes.replicate}"]'


def wrap_flat_shards(
    code: Code, axes: MeshAxes, blocks: list[Blocks], is_mixed: bool, zero: int, offload: bool
) -> None:
    """Add the lines of FSDP1, which shards each block, and the rest, as one flat parameter."""
    is_hybrid = axes.sizes.get(axes.replicate, 1) > 1
    strategies = {
        (3, False): "FULL_SHARD",
        (2, False): "SHARD_GRAD_OP",
        (3, True): "HYBRID_SHARD",
        (2, True): "_HYBRID_SHARD_ZERO2",
    }
    imported = {"FullyShardedDataParallel", "ShardingStrategy"}
    options = [f"device_mesh={data_mesh(code, axes, axes.sharding)}"]
    options.append(f"sharding_strategy=ShardingStrategy.{strategies[zero, is_hybrid]}")
    if blocks:
        code.imports.add("from functools import partial")
        code.imports.add("from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy")
        parts = [f"{{type(block) for block in {members(group)}}}" for group in blocks]
        code.lines.append(f"kinds = {' | '.join(parts)}")
        policy = "policy = partial(transformer_auto_wrap_policy, transformer_layer_cls=kinds)"
        code.lines.append(policy)
        options.append("auto_wrap_policy=policy")
    if is_mixed:
        imported.add("MixedPrecision")
        options.append("mixed_precision=MixedPrecision(torch.bfloat16, torch.float32)")
    if offload:
        imported.add("CPUOffload")
        options.append("cpu_offload=CPUOffload(offload_params=True)")
    code.imports.add(f"from torch.distributed.fsdp import {', '.join(sorted(imported))}")
    code.lines.append("model = FullyShardedDataParallel(")
    code.lines += ["    model,", *(f"    {option}," for option in options), ")"]
