"""The FLOPs and the bytes of one call of an operator.

Input: an operator, its arguments and its result, fakes. Output: its :class:`Work`. Invariant: a
call that launches no kernel (a view, empty memory) has none; bytes are those that a kernel has to
move if each element is read once and written once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from torchfake.inspect.timing.formulas import flop_formulas, recomputed_flops
from torchfake.observe import FakeTensor, Metadata, metadata_of, storage_of, traits_of

MATMUL, CONVOLUTION = "matrix products", "convolutions"
ELEMENTWISE, REDUCTION, COPY, LOOKUP = "elementwise", "reductions", "copies", "lookups"
COMMUNICATION = "communication"
ATTENTION = {"flash": "flash attention", "cudnn": "cuDNN attention",
             "efficient": "memory-efficient attention"}  # fmt: skip
BACKWARD = " backward"

_REDUCTIONS = (
    "norm", "softmax", "sum", "mean", "var", "std", "max", "min", "prod", "all", "any", "nll_loss",
    "cross_entropy", "logsumexp", "argmax", "argmin", "cumsum", "topk", "sort", "linalg",
)  # fmt: skip
_COPIES = ("copy", "cat", "clone", "stack", "pad", "split_with_sizes", "slice_backward", "fill")
_LOOKUPS = ("embedding", "index", "gather", "scatter", "select_backward", "masked")

_TAKES_ROWS = frozenset(
    f"aten::{name}" for name in ("embedding", "index_select", "gather", "index", "nll_loss_forward")
)
_WITHOUT_KERNELS = ("profiler", "c10d", "_c10d_functional")
_VIEWS = ("aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh")


class Work(NamedTuple):
    """What a kernel, or a few for one call, have to do."""

    kind: str
    flops: int  # as torch counts them; 0 for what is no product
    num_bytes: int
    dtype: torch.dtype
    repeated_flops: int = 0  # of them, what the forward pass has computed already
    executed: float = 1.0  # the share of the FLOPs that is executed: half of causal attention
    products: tuple[int, int, int] = (1, 0, 0)  # in a batch, and the rows and columns of each


def work_of(func: Any, args: Any, kwargs: Any, result: Any) -> Work | None:
    """What a call does; None if it launches no kernel on a GPU. See also `launches_nothing`."""
    traits = traits_of(func)
    read, written = _memory(func, traits, args, kwargs, result)
    if not any(record.device.type == "cuda" for record in written):
        return None
    formula = flop_formulas().get(func._overloadpacket)
    if formula is None:
        num_bytes = _bytes_moved(traits.packet, read, written)
        return Work(_kind(traits.packet), 0, num_bytes, written[0].dtype)
    flops = int(formula(*args, **kwargs, out_val=result))
    repeated = recomputed_flops(func, args, flops)
    work = Work(MATMUL, flops, _bytes_moved("", read, written), read[0].dtype, repeated)
    if "attention" in traits.packet:
        executed = 0.5 if _is_causal(func, args, kwargs) else 1.0
        return work._replace(kind=_attention(traits.packet), executed=executed)
    if traits.product_kind != "matmul" or len(written[0].size) < 2:
        return work._replace(kind=CONVOLUTION)
    *batch, rows, columns = written[0].size
    return work._replace(products=(math.prod(batch), rows, columns))


def launches_nothing(func: Any) -> bool:
    """Whether no call of this operator launches a kernel: views, empty memory; and collectives,
    which are no work of this kind.
    """
    traits = traits_of(func)
    is_metadata = traits.is_metadata_only or traits.is_view or traits.returns_uninitialized
    is_other = traits.is_collective or func.namespace in _WITHOUT_KERNELS
    return is_metadata or is_other or traits.packet in _VIEWS


def _attention(packet: str) -> str:
    kernel = next((name for name in ATTENTION if name in packet), "flash")
    return ATTENTION[kernel] + (BACKWARD if packet.endswith("backward") else "")


def _is_causal(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a kernel skips what is above the diagonal, which torch's formulas count."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == "is_causal":
            default = kwargs.get(argument.name, argument.default_value)
            return bool(args[i] if i < len(args) else default)
    return False


def bytes_touched(record: Metadata) -> int:
    """The bytes of a tensor, those of expanded dims counted once."""
    sizes = [n for n, step in zip(record.size, record.stride, strict=True) if step != 0 or n == 0]
    return math.prod(sizes) * record.dtype.itemsize


def _memory(
    func: Any, traits: Any, args: Any, kwargs: Any, result: Any
) -> tuple[list[Metadata], list[Metadata]]:
    """The metadata of the tensors that are read, and of those that are written."""
    read: list[Metadata] = []
    written: list[Metadata] = []
    mutated: set[int] = set()
    takes_metadata = traits.packet.endswith("_like") or "::new_" in traits.packet
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        fakes = list(_fakes(value))
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += map(metadata_of, fakes)
            mutated |= {id(storage_of(fake)) for fake in fakes}
            if (i == 0 and traits.overwrites_first) or argument.is_out:
                continue
        if not takes_metadata:
            read += map(metadata_of, fakes)
    written += [metadata_of(t) for t in _fakes(result) if id(storage_of(t)) not in mutated]
    return read, written


def _fakes(value: Any) -> Iterator[FakeTensor]:
    if isinstance(value, FakeTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _fakes(item)


def _kind(packet: str) -> str:
    namespace, _, name = packet.partition("::")
    if namespace == "fsdp":
        return COPY
    if any(part in name for part in _LOOKUPS):
        return LOOKUP
    if any(part in name for part in _COPIES):
        return COPY
    return REDUCTION if any(part in name for part in _REDUCTIONS) else ELEMENTWISE


def _bytes_moved(packet: str, read: list[Metadata], written: list[Metadata]) -> int:
    """Of a table that rows are taken from, only these rows are read."""
    num_written = sum(map(bytes_touched, written))
    if packet in _TAKES_ROWS:
        return 2 * num_written + sum(map(bytes_touched, read[1:]))
    return num_written + sum(map(bytes_touched, read))
