"""Run on four ranks: models are laid out and read a prompt, and the bytes of each rank are counted.

Its arguments are a folder, into which each rank writes what it has counted, and names of SERVED.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache

from tests.distributed.serving.layouts import SERVED, Served
from tests.distributed.worker_counted import Counting, locals_of, sum_bytes
from torchfake.inspect.serving.blocks import cache_in_blocks

ROWS, LENGTH = 4, 16  # as SERVE


def logits_of(model: nn.Module, cache: Any, length: int) -> torch.Tensor:
    torch.manual_seed(0)
    tokens = torch.randint(3, 50, (ROWS, length))
    with torch.no_grad():
        found = model(input_ids=tokens, past_key_values=cache, logits_to_keep=1).logits
    return found.full_tensor() if isinstance(found, DTensor) else found


def cached(model: Any, length: int) -> list[int]:
    """Bytes that each layer caches of prompts of that length."""
    cache = DynamicCache(config=model.config.get_text_config())
    logits_of(model, cache, length)
    tensors = ([*filter(torch.is_tensor, tree_leaves(vars(layer)))] for layer in cache.layers)
    return [sum(t.nbytes for t in layer if t.is_floating_point()) for layer in tensors]


def error_of(served: Served, mesh: Any) -> float:
    """The largest difference between logits of the model laid out and of the model, in float32."""
    torch.manual_seed(0)
    model = served.build().eval()
    expected = logits_of(model, None, LENGTH)
    found = logits_of(served.strategy(model, mesh), None, LENGTH)
    return float((found - expected).abs().max() / expected.abs().max())


def activations(served: Served, mesh: Any) -> int:
    """Bytes at the peak of a pass over prompts whose keys and values a paged cache takes, beside
    those of weights.
    """
    torch.manual_seed(0)
    model = served.strategy(served.routed().eval(), mesh)
    counting = Counting()
    for tensor in locals_of([*model.parameters(), *model.buffers()]):
        counting.observe(tensor.untyped_storage())
    held = counting.num_bytes
    with counting:
        logits_of(model, cache_in_blocks(model), LENGTH)
    return counting.peak_bytes - held


def counted(served: Served) -> dict[str, Any]:
    strategy = served.strategy
    mesh = init_device_mesh("cpu", strategy.mesh_shape, mesh_dim_names=strategy.mesh_dim_names)
    error = error_of(served, mesh)
    model: Any = strategy(served.model().eval(), mesh)
    few, many = cached(model, LENGTH), cached(model, LENGTH + 1)
    with Counting() as counting:
        logits_of(model, None, LENGTH)
    return {
        "parameters": sum_bytes(model.parameters()),
        "buffers": sum_bytes(model.buffers()),
        "token cached": [(b - a) / ROWS for a, b in zip(few, many, strict=True)],
        "cached": [each / ROWS for each in few],
        "activations": activations(served, mesh),
        "messages": counting.messages,
        "error": error,
    }


def main(folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {name: counted(SERVED[name]) for name in names}
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps(found))
