"""The inputs of a TARGET's model on one rank, and of the stages of a pipeline.

Input: a model, and what the command line says of its inputs. Output: the arguments of the forward
pass, or functions that make them. Invariant: a function makes inputs of any size that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torchfake.distributed.parallelize.context_parallel import (
    check_length,
    is_of_transformers,
    whole_sequences,
)
from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.errors import InputsError
from torchfake.inspect.inputs.example_inputs import base_model, example_inputs
from torchfake.inspect.inputs.written import WrittenInputs, inputs_advice
from torchfake.inspect.targets.resolve import resolve
from torchfake.inspect.targets.target import Target


def inputs_of(
    module: nn.Module, maker: str | Sequence[str] | None, micro: int, seq: int | None
) -> tuple[Any, int | None]:
    """The arguments of the forward pass of a rank, or a function that makes them; and the length of
    their sequences, if they have one.
    """
    if maker is None:
        if base_model(module) is None:
            raise InputsError(
                f"{inputs_advice(module)}; or --inputs file.py:function, which makes them"
            )
        made = example_inputs(module, batch=micro, seq=seq, labels=True)
        return made, made.seq
    if not isinstance(maker, str):
        if seq is not None:
            raise InputsError("--input has all sizes: leave out --seq")
        written = WrittenInputs(module, maker)
        return lambda batch=micro: _one_or_all(written.make(batch)), None

    def make(batch: int = micro, seq: int | None = seq) -> Any:
        sizes = [f"batch={batch}", *([] if seq is None else [f"seq={seq}"])]
        function: Target = resolve(maker, overrides=sizes)
        return function.construct()

    return make, seq


def _one_or_all(inputs: tuple[Any, ...]) -> Any:
    """Inputs as ``plan`` takes them: a tuple, or the only input itself."""
    return inputs[0] if len(inputs) == 1 else inputs


def split_inputs(given: Any, module: nn.Module, axes: MeshAxes) -> Any:
    """The inputs with the positions and the labels that a part of a sequence needs, if an axis
    splits sequences.
    """
    if axes.context_ranks == 1 or not is_of_transformers(module) or callable(given):
        return given
    if "input_ids" not in given:
        names = ", ".join(given)
        raise InputsError(f"{axes.context} splits sequences of tokens: {names} are none")
    length = given["input_ids"].shape[1]
    check_length(length, axes.context_ranks, axes.context)
    return whole_sequences(given)


def inputs_and_target(given: Any, size: int) -> tuple[Any, Any]:
    """The inputs of the first stage and the target of the last, or functions that make them.

    Args:
        given: the inputs of the whole model, or a function that makes them: tokens and labels of a
            model of transformers; the input of an ``nn.Sequential``, and a target if there is one.
        size: samples of all micro-batches.

    Raises:
        InputsError: if a pipeline cannot take such inputs.
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
