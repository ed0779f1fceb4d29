"""The lines that checkpoint the activations of repeated blocks.

Input: the blocks, and what is kept of each. Output: lines of ``parallelize``, and the policy that
they refer to. Invariant: blocks are wrapped before they are sharded. Called by: ``code``.
"""

from __future__ import annotations

from torch import nn

from torchfake.distributed.parallelize.blocks import Blocks
from torchfake.distributed.parallelize.writer import Code, expression, positions
from torchfake.errors import InputsError

_KEEPING = """KEPT = {  # besides every second matrix product; all else runs again going backward
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}


def contexts():
    num_products = {False: 0, True: 0}  # of the first run, and of the second

    def policy(ctx, op, *args, **kwargs):
        if op in PRODUCTS:
            num_products[ctx.is_recompute] += 1
        is_kept = op in KEPT or (op in PRODUCTS and num_products[ctx.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
"""


def checkpoint_blocks(code: Code, module: nn.Module, blocks: list[Blocks], kind: str) -> None:
    """Run each block again in the backward pass: all of it, or what is cheap."""
    if not blocks:
        raise InputsError(
            f"{type(module).__name__} has no repeated blocks to checkpoint: leave checkpoint at "
            "none, or apply checkpoint_wrapper in a parallelize= of your own"
        )
    wrapper = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    code.imports.add(f"from {wrapper} import checkpoint_wrapper")
    options = ""
    if kind == "selective":
        names = "CheckpointPolicy, create_selective_checkpoint_contexts"
        code.imports.add(f"from torch.utils.checkpoint import {names}")
        code.helpers.append(_KEEPING)
        options = ", context_fn=contexts"
    for group in blocks:
        owner = expression(group.path)
        if group.is_whole:
            code.lines.append(f"for i, block in enumerate({owner}):")
            code.lines.append(f"    {owner}[i] = checkpoint_wrapper(block{options})")
        else:
            code.lines.append(f"for i in {positions(module, group)}:")
            code.lines.append(f"    {owner}[i] = checkpoint_wrapper({owner}[i]{options})")
