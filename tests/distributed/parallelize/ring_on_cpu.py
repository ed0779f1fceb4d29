"""torch's ring attention with the CPU's flash kernel, for which it has no handler of its own.

The ring is torch's (``_templated_ring_attention``), as it is on a GPU: what is sent, when, and what
is held meanwhile. Here it is told which operators it calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

from torchfake.distributed.parallelize.context_parallel import in_ring

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _around(query: Any, results: Any) -> tuple[DTensor, ...]:
    mesh = query.device_mesh
    return tuple(DTensor.from_local(t, mesh, [Shard(2)], run_check=False) for t in results)


def _local(tensors: Any) -> list[torch.Tensor]:
    return [t.to_local() for t in tensors]


def _forward(op: Any, args: Any, kwargs: Any) -> Any:
    query, key, value = _local(args[:3])
    dropout_p, is_causal = (*args[3:], 0.0, False)[:2]
    found = ring._templated_ring_attention(
        args[0].device_mesh.get_group(), 2, FORWARD, query=query, key=key, value=value,
        is_causal=is_causal, dropout_p=dropout_p, scale=kwargs.get("scale"),
    )  # fmt: skip
    return _around(args[0], found)


def _backward(op: Any, args: Any, kwargs: Any) -> Any:
    grad_out, query, key, value, out, logsumexp = _local(args[:6])
    dropout_p, is_causal = args[6:8]
    found = ring._templated_ring_attention_backward(
        args[1].device_mesh.get_group(), 2, BACKWARD, grad_out=grad_out, grad_out_name="grad_out",
        query=query, key=key, value=value, out=out, logsumexp=logsumexp, is_causal=is_causal,
        dropout_p=dropout_p, scale=kwargs.get("scale"),
    )  # fmt: skip
    return _around(args[1], found)


@contextlib.contextmanager
def in_ring_on_cpu(axes: Any, rotation: str, mesh: Any, inputs: Any) -> Iterator[None]:
    """The context of a micro-batch of a strategy, with these operators."""
    ring.custom_ops |= {FORWARD: _forward, BACKWARD: _backward}
    ring.set_rotate_method(rotation)
    try:
        with in_ring(axes, mesh, inputs):
            yield
    finally:
        del ring.custom_ops[FORWARD], ring.custom_ops[BACKWARD]
        ring.set_rotate_method("allgather")
