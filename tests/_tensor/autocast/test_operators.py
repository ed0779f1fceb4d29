"""Results under autocast have eager's dtypes, for every operator of torch's database."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tests._tensor.conftest import BF16, F32, fake_copies, outcome

NOT_EAGERS_DTYPE: dict[str, set[str]] = {"float32": set(), "bfloat16": set(), "mixed": set()}
"""Operators of torch's database whose results under CPU autocast differ from eager's in dtype, by
the dtype of the samples. One that differs and is not here fails, and so does the reverse."""


def mix(tree: Any) -> Any:
    """Every other float32 tensor in bfloat16."""
    turn = 0

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal turn
        turn += tensor.dtype is F32
        return tensor.to(BF16) if tensor.dtype is F32 and turn % 2 else tensor

    return pytree.tree_map_only(torch.Tensor, convert, tree)


def samples(op: Any, kind: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    dtype = BF16 if kind == "bfloat16" else F32
    if kind != "bfloat16" and F32 not in op.supported_dtypes("cpu"):
        return
    try:  # autocast lets some operators run in a dtype that they do not support
        # (op.sample_inputs looks for the running test on the stack, which takes 30 ms a sample.)
        found = list(islice(op.sample_inputs_func(op, "cpu", dtype, False), 2))
    except (RuntimeError, NotImplementedError):
        return
    for sample in found:
        call = ((sample.input, *sample.args), sample.kwargs)
        if all(t.layout == torch.strided for t in pytree.tree_leaves(call) if torch.is_tensor(t)):
            yield mix(call) if kind == "mixed" else call


def differs(op: Any, call: Any) -> bool:
    """Whether autocast gives the fakes' result another dtype than eager's.

    Where the two differ without autocast too, autocast is not the cause (tests/opinfo has them).
    """
    args, kwargs = call
    fake_args, fake_kwargs = fake_copies(call)
    with torch.autocast("cpu"):
        expected = outcome(lambda: op.op(*args, **kwargs))
        if expected is None or outcome(lambda: op.op(*fake_args, **fake_kwargs)) == expected:
            return False
    plain = outcome(lambda: op.op(*args, **kwargs))
    fake = outcome(lambda: op.op(*fake_args, **fake_kwargs))
    return fake is not None and (plain is None or plain == fake)


@pytest.mark.parametrize("kind", NOT_EAGERS_DTYPE)
def test_operator_database(kind: str) -> None:
    torch.manual_seed(0)
    found = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if any(differs(op, call) for call in samples(op, kind)):
                found.add(f"{op.name} {op.variant_test_name}".strip())
    assert found == NOT_EAGERS_DTYPE[kind]
