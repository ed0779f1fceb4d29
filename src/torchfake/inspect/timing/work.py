"""The FLOPs and the bytes of one call of an operator that launches kernels on a GPU.

Input: an operator, its arguments and its result, which are fakes. Output: its :class:`Work`.
Invariant: a call that launches no kernel (a view, uninitialized memory) has no work; a call whose
FLOPs are not known is of a kind of its own, and has the bytes that it moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torchfake.inspect.arithmetic.formulas import flops_of, kind_of_product, product_of
from torchfake.inspect.arithmetic.kinds import MATMUL, RECURRENT, UNCOUNTED, kind_of
from torchfake.inspect.arithmetic.moved_bytes import bytes_touched, memory_of

ON_CPU = "on the CPU"
"""The kind of what is computed on the CPU, or copied from or to its memory."""


class Work(NamedTuple):
    """The FLOPs and bytes of one call of an operator, which may launch several kernels."""

    kind: str  # MATMUL, ELEMENTWISE, ...
    flops: int  # as torch counts them; 0 for operators without a formula
    num_bytes: int
    dtype: torch.dtype
    repeated_flops: int = 0  # the part of `flops` that recomputes the forward pass
    executed: float = 1.0  # the share of `flops` that is executed: half for causal attention
    products: tuple[int, int, int] | None = None
    """Of a batch of results of matrix products: number, rows and columns."""


def work_of(func: Any, args: Any, kwargs: Any, result: Any) -> Work | None:
    """The work of a call; None if it writes nothing on a GPU, or is reported by its parts. See also
    `launches_nothing`.
    """
    if result is NotImplemented:
        return None
    memory = memory_of(func, args, kwargs, result)
    if not any(record.device.type == "cuda" for record in memory.written):
        return None
    flops = flops_of(func, args, kwargs, result)
    if flops is None:
        kind = kind_of(func) or UNCOUNTED
        return Work(kind, 0, memory.num_bytes_of_rows, memory.written[0].dtype)
    kind = kind_of_product(func)
    work = Work(kind, flops.total, memory.num_bytes, memory.read[0].dtype, flops.recomputed)
    if kind in (MATMUL, RECURRENT):
        return work._replace(products=product_of(func, args, kwargs, result))
    return work._replace(executed=0.5 if _is_causal(func, args, kwargs) else 1.0)


def cpu_bytes_of(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """The bytes of CPU memory that a call reads and writes."""
    if result is NotImplemented:
        return 0
    memory = memory_of(func, args, kwargs, result)
    touched = (*memory.read, *memory.written)
    return sum(bytes_touched(record) for record in touched if record.device.type == "cpu")


def _is_causal(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the kernel skips scores above the diagonal, which torch's formulas count."""
    if not hasattr(func, "_schema"):
        return False
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "is_causal":
            default = kwargs.get(argument.name, argument.default_value)
            return bool(args[i] if i < len(args) else default)
    return False
