"""The inputs of a TARGET's model on one rank, and of the stages of a pipeline.

Input: a model, and the options of the command line for its inputs. Output: the arguments of the
forward pass, or functions that create them. Invariant: such a function creates inputs of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from torchfake.distributed.parallelize.context_parallel import (
    check_length,
    is_of_transformers,
    whole_sequences,
)
from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.errors import InputsError, UnknownValueError
from torchfake.inspect.contents.positions import too_long
from torchfake.inspect.inputs.example_inputs import base_model, sized_inputs
from torchfake.inspect.inputs.given import SHORTER
from torchfake.inspect.inputs.hints import inputs_advice
from torchfake.inspect.inputs.written import WrittenInputs, parse_input
from torchfake.inspect.targets.resolve import resolve
from torchfake.inspect.targets.target import Target


@contextmanager
def run_explained(module: nn.Module, seq: int | None, answer: Any) -> Iterator[None]:
    """Context of a plan that explains what its errors do not: which option supplies values, and
    that a text is longer than the positions that the model has learned.
    """
    try:
        yield
    except UnknownValueError as error:
        if answer is not None:
            raise
        raise UnknownValueError(f"{error}, on the command line --answer typical") from error
    except InputsError as error:
        cause = error.__cause__
        if not isinstance(cause, Exception):
            raise
        if refusal := too_long(cause, module, seq or 0, SHORTER):
            raise InputsError(refusal) from error
        raise


def inputs_of(
    module: nn.Module, maker: str | Sequence[str] | None, micro: int, seq: int | None
) -> tuple[Any, int | None]:
    """The arguments of a rank's forward pass, or a function that creates them; and the sequence
    length, if the inputs have one.
    """
    if maker is None:
        if base_model(module) is None:
            raise InputsError(
                f"{inputs_advice(module)}; or --inputs file.py:function, which makes them"
            )
        made = sized_inputs(module, batch=micro, seq=seq, labels=True)
        return made, made.seq
    if not isinstance(maker, str):
        if seq is not None:
            raise InputsError("--input has all sizes: leave out --seq")
        written = WrittenInputs(module, maker)
        return partial(_written, written, batch=micro), None

    def make(batch: int = micro, seq: int | None = seq) -> Any:
        sizes = [f"batch={batch}", *([] if seq is None else [f"seq={seq}"])]
        function: Target = resolve(maker, overrides=sizes)
        return function.construct()

    return make, seq


def _written(written: WrittenInputs, batch: int) -> Any:
    """Inputs as ``plan`` takes them: a tuple, or the only input itself."""
    inputs = written.make(batch)
    return inputs[0] if len(inputs) == 1 else inputs


def written_batch(maker: str | Sequence[str] | None) -> int | None:
    """The batch size in inputs that are given as text: the first size of the first of them."""
    if maker is None or isinstance(maker, str):
        return None
    return next((shape[0] for _, _, _, shape, _ in map(parse_input, maker) if shape), None)


def split_inputs(given: Any, module: nn.Module, axes: MeshAxes) -> Any:
    """Add the positions and labels that a part of a sequence needs, if an axis splits sequences."""
    if axes.context_ranks == 1 or not is_of_transformers(module) or callable(given):
        return given
    if "input_ids" not in given:
        names = ", ".join(given)
        raise InputsError(f"{axes.context} splits sequences of tokens: {names} are none")
    length = given["input_ids"].shape[1]
    check_length(length, axes.context_ranks, axes.context)
    return whole_sequences(given)


def inputs_and_target(given: Any, size: int) -> tuple[Any, Any]:
    """The inputs of the first stage and the target of the last, or functions that create them.

    Args:
        given: the inputs of the whole model, or a function that creates them: tokens and labels of
            a transformers model; the input of an ``nn.Sequential``, and optionally a target.
        size: the number of samples of all micro-batches.

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
