"""The lines that give ranks parts of the batch, and shard or copy what they train.

Input: the axes, the blocks, options of FSDP2. Output: lines of ``parallelize``. Invariant: blocks
are sharded one at a time, and then what is left, the root.
"""

from __future__ import annotations

import importlib.util

import torch

from torchfake.distributed.parallelize.blocks import Blocks
from torchfake.distributed.parallelize.expert_parallel import ExpertModules, shard_experts
from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.writer import Code, data_mesh, members
from torchfake.errors import InputsError

_REPLICATE = "torch.distributed._composable.replicate_with_fsdp"


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
    """Shard with FSDP2, replicate, or both; experts that are split along other axes than the
    rest.
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
    """Refuse replication where this torch has no engine for it that fakes can run."""
    if importlib.util.find_spec(_REPLICATE) is None:
        raise InputsError(
            f"torch {torch.__version__} has no {_REPLICATE}, and DistributedDataParallel reads "
            "parameters in C++: shard them (dp), or take torch 2.13 or newer"
        )
