"""The lines that checkpoint the activations of repeated blocks.

Input: the blocks, and what is kept of each. Output: lines of ``parallelize``, and the policy that
they refer to. Invariant: blocks are wrapped before they are sharded.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from torchfake.distributed.parallelize.blocks import Blocks
from torchfake.distributed.parallelize.choices import kinds_of
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


_OPTIONS = {"full": "", "selective": ", context_fn=contexts"}
"""Of ``checkpoint_wrapper``, by what is kept."""


def checkpoint_blocks(
    code: Code, module: nn.Module, blocks: list[Blocks], choices: str | int
) -> None:
    """Run blocks again in the backward pass: all of each, or what is cheap.

    Raises:
        InputsError: if there are no blocks, or not those that are named.
    """
    if not blocks:
        raise InputsError(
            f"{type(module).__name__} has no repeated blocks to checkpoint: leave checkpoint at "
            "none, or apply checkpoint_wrapper in a parallelize= of your own"
        )
    kinds = kinds_of(choices, sum(len(group.keys) for group in blocks))
    if set(kinds) == {"none"}:
        return
    wrapper = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    code.imports.add(f"from {wrapper} import checkpoint_wrapper")
    if "selective" in kinds:
        names = "CheckpointPolicy, create_selective_checkpoint_contexts"
        code.imports.add(f"from torch.utils.checkpoint import {names}")
        code.helpers.append(_KEEPING)
    for group in blocks:
        code.lines += _wrapped(module, group, kinds[: len(group.keys)])
        kinds = kinds[len(group.keys) :]


def _wrapped(module: nn.Module, group: Blocks, kinds: Sequence[str]) -> list[str]:
    """The lines that wrap the blocks of a group, of which each has its kind."""
    owner, places, lines = expression(group.path), positions(module, group), []
    for kind, options in _OPTIONS.items():
        chosen = [place for place, found in zip(places, kinds, strict=True) if found == kind]
        if chosen and group.is_whole and len(chosen) == len(places):
            lines.append(f"for i, block in enumerate({owner}):")
            lines.append(f"    {owner}[i] = checkpoint_wrapper(block{options})")
        elif chosen:
            lines.append(f"for i in {_numbers(chosen)}:")
            lines.append(f"    {owner}[i] = checkpoint_wrapper({owner}[i]{options})")
    return lines


def _numbers(chosen: list[int]) -> str:
    """The expression of these numbers: a range if they are neighbours.

    >>> _numbers([0, 1, 2]), _numbers([3, 4]), _numbers([2, 5])
    ('range(3)', '(3, 4)', '(2, 5)')
    """
    first, last = chosen[0], chosen[-1]
    if len(chosen) < 3 or chosen != list(range(first, last + 1)):
        return str(tuple(chosen))
    return f"range({last + 1})" if first == 0 else f"range({first}, {last + 1})"
