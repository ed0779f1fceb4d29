"""The code that splits sequences among the ranks of an axis (context parallelism).

Input: a model and the axes. Output: lines of ``parallelize``; the functions that create and split a
batch. Invariant: keys and values circulate in torch's own ring attention; a model whose attention
ring attention would change is refused.

Each rank computes with two chunks of each sequence, one from each half, chosen so that causal
attention is the same amount of work on all ranks (``torch.distributed.tensor.experimental``).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.writer import Code
from torchfake.errors import InputsError

_ENGINE = "torch.distributed.tensor.experimental"

_CAUSAL = """# A name without a mask: ring attention takes is_causal alone.
AttentionInterface.register("causal_sdpa", sdpa_attention_forward)
model.set_attn_implementation("causal_sdpa")"""

_WHOLE = '''def whole_sequences(batch):
    """A batch with what a part of a sequence does not say: positions, and labels moved by one."""
    ids = batch["input_ids"]
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids).contiguous()
    batch = {"input_ids": ids, "position_ids": positions, "labels": batch["labels"]}
    moved = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)
    return {**batch, "shift_labels": moved[:, 1:].contiguous()}'''

_CONTEXT = '''def split_sequences(mesh, batch):
    """The context of the forward and the backward pass of a micro-batch: in it, a batch is a part
    of each sequence.
    """
    buffers = list(batch.values())
    return context_parallel(mesh["{axis}"], buffers=buffers, buffer_seq_dims=[1] * len(buffers))'''


def split_contexts(code: Code, module: nn.Module, axes: MeshAxes) -> None:
    """Add the lines that split sequences along the axis of context parallelism.

    Raises:
        InputsError: if torch lacks ring attention, or the model's attention cannot be split.
    """
    if not hasattr(importlib.import_module(_ENGINE), "context_parallel"):
        raise InputsError(
            f"torch {torch.__version__} has no {_ENGINE}.context_parallel: leave out "
            f"{axes.context}, or take torch 2.7 or newer"
        )
    code.imports.add(f"from {_ENGINE} import context_parallel")
    if is_of_transformers(module):
        _check_attention(module, axes.context)
        code.imports.add("from transformers import AttentionInterface")
        path = "transformers.integrations.sdpa_attention"
        code.imports.add(f"from {path} import sdpa_attention_forward")
        code.lines += _CAUSAL.splitlines()
        code.helpers.append(_WHOLE)
    code.helpers.append(_context_of(axes))


def _context_of(axes: MeshAxes) -> str:
    return _CONTEXT.format(axis=axes.context)


def whole_sequences(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a transformers model for whole sequences, computed by the printed code."""
    names: dict[str, Any] = {"torch": torch}
    exec(_WHOLE, names)
    made: dict[str, Any] = names["whole_sequences"](batch)
    return made


def context_usage(module: nn.Module) -> str:
    """The use of the printed functions in a training loop, as a comment."""
    batch = "whole_sequences(batch)" if is_of_transformers(module) else "batch"
    return (
        "# for each micro-batch:\n"
        f"#     batch = {batch}\n"
        "#     with split_sequences(mesh, batch):\n"
        "#         model(**batch).loss.backward()\n"
    )


@contextlib.contextmanager
def in_ring(axes: MeshAxes, mesh: Any, inputs: Any) -> Iterator[None]:
    """The context of a micro-batch in which sequences are split, created by the printed code.

    Raises:
        InputsError: if a sequence does not divide evenly, or the model's attention was not split,
            so that a rank would attend to its own part only.
    """
    batch = dict(inputs) if isinstance(inputs, Mapping) else dict(enumerate(inputs))
    for tensor in batch.values():
        if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
            raise InputsError(f"{axes.context} splits inputs of shape [batch, tokens, ...] alone")
        check_length(tensor.shape[1], axes.context_ranks, axes.context)
    names: dict[str, Any] = {}
    exec(f"from {_ENGINE} import context_parallel\n{_context_of(axes)}", names)
    before = functional.scaled_dot_product_attention
    with names["split_sequences"](mesh, batch), _AttentionCalls() as calls:
        assert calls.function is not before, "torch's context splits attention"
        yield
    if not calls.number:
        raise InputsError(
            f"the model does not call torch.nn.functional.scaled_dot_product_attention, which "
            f"{axes.context} splits: leave {axes.context} out of the mesh"
        )


class _AttentionCalls:
    """Context that counts the calls of attention."""

    def __enter__(self) -> _AttentionCalls:
        self.number, self.function = 0, functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = self
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.number += 1
        try:
            return self.function(*args, **kwargs)
        except RuntimeError as error:
            if "mixed torch.Tensor and DTensor" not in str(error):
                raise
            raise InputsError(
                "torch has no fused kernel for this attention, and ring attention runs no other: "
                "take the precision mixed or bf16, or as many heads of keys as of queries"
            ) from error

    def __exit__(self, *error: object) -> None:
        functional.scaled_dot_product_attention = self.function


def check_length(length: int, ranks: int, axis: str) -> None:
    """Check that a sequence divides into two chunks for each rank."""
    parts = 2 * ranks
    if length % parts:
        near = [n for n in (length // parts * parts, -(-length // parts) * parts) if n]
        raise InputsError(
            f"{axis}={ranks} splits a sequence into {parts} chunks, two for each rank, which do "
            f"not divide {length} tokens: give {' or '.join(map(str, near))}"
        )


def is_of_transformers(module: Any) -> bool:
    """Whether a module is a transformers model, whose attention is chosen by name."""
    return hasattr(module, "set_attn_implementation") and hasattr(module, "config")


def _check_attention(module: Any, axis: str) -> None:
    name = type(module).__name__
    if not module._supports_sdpa:
        raise InputsError(
            f"{name} has no attention by scaled_dot_product_attention, which {axis} splits: leave "
            f"{axis} out of the mesh, and split along tp"
        )
    if not module.can_generate() or module.config.is_encoder_decoder:
        raise InputsError(
            f"{name} is not a causal language model, whose attention and loss {axis} splits: leave "
            f"{axis} out of the mesh"
        )
    has_window = getattr(module.config.get_text_config(), "sliding_window", None) is not None
    if not getattr(module, "supports_context_parallel", not has_window):
        raise InputsError(
            f"{name} has attention that is not causal over the whole sequence (windows, chunks, "
            f"sinks or a state), which torch's ring attention does not split: leave {axis} out of "
            "the mesh"
        )
