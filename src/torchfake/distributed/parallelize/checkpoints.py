"""Activation checkpointing: which blocks are checkpointed and how, and the lines that do it.

Input: text such as ``full``, ``12`` or ``full:0-11,selective:12-15``; the blocks of a model.
Output: the checkpointing kind of each block; lines of ``parallelize``, and their policy. Invariant:
blocks are numbered from 0 in the order of the model; a block that the text does not name keeps all
of its activations; blocks are wrapped before they are sharded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from torch import nn

from torchfake.distributed.parallelize.blocks import Blocks
from torchfake.distributed.parallelize.writer import Code, expression, positions
from torchfake.errors import InputsError, did_you_mean

CHECKPOINTS = ("none", "selective", "full")
"""The kinds of checkpointing, from the one that keeps most activations to the least."""

_FORM = "give none, selective, full, how many of the blocks (12), or full:0-11,selective:12-15"
_PART = re.compile(r"(\w+):(\d+(?:-\d+)?(?:\+\d+(?:-\d+)?)*)")

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
"""Arguments of ``checkpoint_wrapper`` for each kind."""


def check_choices(given: str | int) -> None:
    """Check the syntax of a ``checkpoint=`` option.

    Raises:
        InputsError: if the option is invalid.
    """
    _ranges(given)


def kinds_of(given: str | int, num_blocks: int) -> list[str]:
    """The kind of checkpointing of each block.

    Raises:
        InputsError: if the option names a block that the model does not have.

    >>> kinds_of("full:0+2-3", 5), kinds_of(2, 3)
    (['full', 'none', 'full', 'full', 'none'], ['full', 'full', 'none'])
    """
    if given in CHECKPOINTS:
        return [str(given)] * num_blocks
    kinds = ["none"] * num_blocks
    for kind, first, last in _ranges(given):
        if last >= num_blocks:
            raise InputsError(
                f"checkpoint={given!r} names block {last}, and the model has {num_blocks} blocks, "
                f"0 to {num_blocks - 1}"
            )
        kinds[first : last + 1] = [kind] * (last + 1 - first)
    return kinds


def text_of(kinds: Sequence[str]) -> str:
    """The text of ``checkpoint=`` that gives each block its kind.

    >>> text_of(["full", "full", "selective", "none", "full"]), text_of(["full"] * 3)
    ('full:0-1+4,selective:2', 'full')
    """
    if len(set(kinds)) == 1:
        return kinds[0]
    parts = []
    for kind in reversed(CHECKPOINTS[1:]):
        runs = [f"{a}-{b}" if b > a else f"{a}" for found, a, b in runs_of(kinds) if found == kind]
        parts += [f"{kind}:{'+'.join(runs)}"] if runs else []
    return ",".join(parts)


def runs_of(kinds: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Runs of neighbouring blocks of equal kind: the kind, the first and the last block."""
    for kind, run in groupby(range(len(kinds)), key=lambda i: kinds[i]):
        positions = list(run)
        yield kind, positions[0], positions[-1]


def counts_of(given: str | int) -> dict[str, int] | None:
    """The number of blocks of each kind that the option names; None if all are of one kind."""
    if given in CHECKPOINTS:
        return None
    counts: dict[str, int] = {}
    for kind, first, last in _ranges(given):
        counts[kind] = counts.get(kind, 0) + last + 1 - first
    return counts


def _ranges(given: str | int) -> list[tuple[str, int, int]]:
    """The ranges of blocks that an option names: the kind, the first and the last block."""
    if given in CHECKPOINTS:
        return []
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return [("full", 0, given - 1)] if given else []
    if not isinstance(given, str):
        raise InputsError(f"checkpoint={given!r} is not understood: {_FORM}")
    if given.isdecimal():
        return _ranges(int(given))
    found: list[tuple[str, int, int]] = []
    for part in given.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or match[1] not in CHECKPOINTS:
            name = part.strip().partition(":")[0]
            hint = "" if match is None and name in CHECKPOINTS else did_you_mean(name, CHECKPOINTS)
            raise InputsError(f"checkpoint is {given!r}{hint or f': {_FORM}'}")
        found += [(match[1], *_range(text, given)) for text in match[2].split("+")]
    named = [i for _, first, last in found for i in range(first, last + 1)]
    twice = next((i for i in named if named.count(i) > 1), None)
    if twice is not None:
        raise InputsError(f"checkpoint={given!r} names block {twice} twice: name each once")
    return found


def _range(text: str, given: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if last and int(last) < int(first):
        raise InputsError(f"checkpoint={given!r} has {text}: give {last}-{first}")
    return int(first), int(last or first)


def checkpoint_blocks(
    code: Code, module: nn.Module, blocks: list[Blocks], choices: str | int
) -> None:
    """Add the lines that checkpoint blocks: recompute whole blocks, or only cheap operators.

    Raises:
        InputsError: if the model has no blocks, or lacks a block that `choices` names.
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
    """The lines that wrap the blocks of a group, given the kind of each."""
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
    """The Python expression of some numbers: a ``range`` if they are consecutive.

    >>> _numbers([0, 1, 2]), _numbers([3, 4]), _numbers([2, 5])
    ('range(3)', '(3, 4)', '(2, 5)')
    """
    first, last = chosen[0], chosen[-1]
    if len(chosen) < 3 or chosen != list(range(first, last + 1)):
        return str(tuple(chosen))
    return f"range({last + 1})" if first == 0 else f"range({first}, {last + 1})"
