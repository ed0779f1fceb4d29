"""The FLOPs and the bytes of one call of an operator that launches kernels on a GPU.

Input: an operator, its arguments and its result, which are fakes. Output: its :class:`Work`.
Invariant: a call that launches no kernel (a view, uninitialized memory) has no work; a call whose
FLOPs are not known is of a kind of its own, and has the bytes that it moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from torchfake.inspect.arithmetic.call import Call
from torchfake.inspect.arithmetic.formulas import flops_of, kind_of_product, products_of
from torchfake.inspect.arithmetic.kinds import (
    CONVOLUTION,
    COPY,
    DEPTHWISE,
    ELEMENTWISE,
    MATMUL,
    RECURRENT,
    UNCOUNTED,
    kind_of,
)
from torchfake.inspect.arithmetic.layers import (
    has_short_filters,
    is_channels_first,
    is_depthwise_convolution,
)
from torchfake.inspect.arithmetic.matrices import Product
from torchfake.inspect.arithmetic.moved_bytes import (
    bytes_touched,
    is_given_statistics,
    memory_of,
)
from torchfake.observe import traits_of

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
    products: tuple[Product, ...] = ()  # of matrices; none if the result is none
    is_uniform: bool = True  # whether kernels read and write whole vectors
    is_tf32: bool = False  # whether float32 is rounded to TF32, for tensor cores
    is_backward: bool = False
    has_short_filters: bool = False  # of a convolution: Winograd's algorithm may compute it
    is_channels_first: bool = False  # of a convolution: tensor cores need another layout


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
        work = Work(kind, 0, memory.num_bytes_of_rows, memory.written[0].dtype)
        if is_given_statistics(func, args, kwargs):
            return work._replace(kind=ELEMENTWISE)
        is_uniform = memory.keeps_strides if kind == COPY else memory.is_uniform
        return work._replace(is_uniform=is_uniform)
    kind = kind_of_product(func)
    work = Work(kind, flops.total, memory.num_bytes, memory.read[0].dtype, flops.recomputed)
    if kind in (MATMUL, RECURRENT, CONVOLUTION):
        return _of_products(work, func, args, kwargs, result)
    return work._replace(executed=0.5 if _is_causal(func, args, kwargs) else 1.0)


def _of_products(work: Work, func: Any, args: Any, kwargs: Any, result: Any) -> Work:
    """The work of an operator that multiplies matrices."""
    is_single = work.dtype is torch.float32
    work = work._replace(
        is_tf32=is_single and rounds_to_tf32(is_convolution=work.kind != MATMUL),
        is_backward="backward" in traits_of(func).packet,
    )
    call = Call(func, args, kwargs, result)
    if work.kind == CONVOLUTION and is_depthwise_convolution(call):
        return work._replace(kind=DEPTHWISE)
    if work.kind == CONVOLUTION:
        work = work._replace(
            has_short_filters=has_short_filters(call), is_channels_first=is_channels_first(call)
        )
    return work._replace(products=products_of(call, work.flops))


def rounds_to_tf32(*, is_convolution: bool) -> bool:
    """Whether torch lets tensor cores multiply float32, as the program has set it: by default in
    cuDNN's convolutions and recurrent layers, not in matrix products.
    """
    if is_convolution:
        return bool(torch.backends.cudnn.allow_tf32)
    return torch.get_float32_matmul_precision() != "highest"


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
