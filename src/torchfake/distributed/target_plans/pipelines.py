"""The batch of a pipeline: micro-batches, inputs of its first stage, the target of its last.

Input: sizes of a batch, inputs of a model. Output: the same for a pipeline. Invariant: all
micro-batches of a step are run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.errors import InputsError


def micro_batches(
    size: int | None, micro: int | None, accumulate: int | None, axes: MeshAxes
) -> tuple[int | None, int | None]:
    """The samples of a micro-batch, and the number of them, where neither is given: one sample at a
    time; without a batch two micro-batches for each rank of the pipeline.
    """
    if axes.pipeline_ranks == 1 or accumulate is not None:
        return micro, accumulate
    if size is None:
        return micro, 2 * axes.pipeline_ranks
    return micro or 1, None


def inputs_and_target(given: Any, size: int) -> tuple[Any, Any]:
    """The inputs of the first stage and the target of the last, or functions that make them.

    Args:
        given: what a model is given, or a function that makes it: tokens and labels of a model of
            transformers; of an ``nn.Sequential`` its input, and a target if there is a second.
        size: samples of all micro-batches.

    Raises:
        InputsError: if it is none of these.
    """
    if callable(given) and not isinstance(given, Mapping):
        return lambda: _split(given(), size)[0], lambda: _split(given(), size)[1]
    return _split(given, size)


def _split(given: Any, size: int) -> tuple[Any, Any]:
    if isinstance(given, Mapping):
        if "input_ids" not in given:
            raise InputsError(
                f"the first stage of a pipeline takes input_ids, and the inputs are "
                f"{', '.join(given)}: give plan a parallelize= of your own"
            )
        tokens = given["input_ids"]
        labels = given.get("labels")
        return (tokens,), tokens.clone() if labels is None else labels
    values = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if len(values) > 2:
        raise InputsError(
            f"a pipeline of an nn.Sequential has one input and a target, not {len(values)} inputs"
        )
    return values[:1], values[1] if len(values) == 2 else torch.zeros(size)
