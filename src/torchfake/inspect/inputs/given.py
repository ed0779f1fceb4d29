"""The inputs of a module from the arguments of a public function: tensors, sizes or shapes.

Input: the arguments of a public function. Output: a module's inputs. Invariant: tensors that are
given are passed on unchanged; contradictory arguments are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torchfake._core.arguments import is_whole_number
from torchfake.errors import InputsError, TorchFakeError
from torchfake.inspect.contents.positions import too_long
from torchfake.inspect.copies.workload import Workload
from torchfake.inspect.inputs.example_inputs import has_inputs, sized_inputs
from torchfake.inspect.inputs.hints import inputs_needed
from torchfake.inspect.inputs.resizing import longest_text
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.steps.step import Step

Shape = Sequence[int]

FORWARD = Step("inference")

SHORTER = "give at most seq={}"
"""What to give in place of an input that is too long."""


def inputs_given(
    module: nn.Module,
    inputs: tuple[Any, ...],
    *,
    batch: int | None = None,
    seq: int | None = None,
    input_size: Shape | Sequence[Shape] | None = None,
    labels: bool = False,
) -> tuple[Any, ...]:
    """The inputs of a module: the given ones, or inputs generated for the given sizes.

    Args:
        module: the module to run.
        inputs: the inputs that were given.
        batch: the batch size of inputs that are generated for a model of transformers.
        seq: the sequence length of generated inputs.
        input_size: the shape of a tensor of the default dtype, or a list of shapes.
        labels: whether generated inputs have labels.

    Raises:
        InputsError: if both inputs and sizes are given, or no inputs can be generated.
    """
    sizes = {"batch": batch, "seq": seq, "input_size": input_size}
    asked = [f"{name}=" for name, value in sizes.items() if value is not None]
    if not asked:
        return inputs
    if inputs:
        raise InputsError(f"both inputs and {' and '.join(asked)} are given: give one of them")
    if input_size is None:
        made = sized_inputs(module, batch=1 if batch is None else batch, seq=seq, labels=labels)
        return (made,)
    if batch is not None or seq is not None:
        raise InputsError(
            f"{' and '.join(asked)}: input_size= has all sizes already, the batch first"
        )
    return tuple(torch.empty(tuple(shape), device="meta") for shape in _shapes(input_size))


def _shapes(input_size: Any) -> list[Shape]:
    shapes = [input_size] if is_shape(input_size) else input_size
    if not isinstance(shapes, (list, tuple)) or not all(map(is_shape, shapes)):
        raise InputsError(
            f"input_size={input_size!r:.60} is no shape, such as (2, 64), and no list of shapes"
        )
    return list(shapes)


def is_shape(value: Any) -> bool:
    """Whether a value is a non-empty tuple or list of sizes."""
    is_sequence = isinstance(value, (list, tuple)) and len(value) > 0
    return is_sequence and all(is_whole_number(size, 0) for size in value)


def lacks_arguments(error: BaseException) -> bool:
    """Whether an error says that a function was called without required arguments."""
    return isinstance(error, TypeError) and " missing " in str(error)


def remedy_of(step: Step) -> str:
    """What to give in place of a text that is too long; "{}" stands for the positions."""
    if step.serve is not None:
        return "give serve= a context of at most {}"
    return "give decode= at most {} tokens" if step.decode else SHORTER


@contextmanager
def inputs_explained(
    workload: Workload, inputs: tuple[Any, ...], step: Step = FORWARD
) -> Iterator[None]:
    """Context of a run that explains errors caused by wrong inputs: none, a string, a shape in
    place of a tensor, or a text that is longer than the positions that the model has learned.
    """
    module = workload.module
    try:
        yield
    except TorchFakeError:
        raise
    except Exception as error:
        if refusal := too_long(error, module, longest_text(workload, step), remedy_of(step)):
            raise InputsError(refusal) from error
        if step.serve is not None:
            name = type(module).__name__
            raise InputsError(f"{name} cannot be served: {one_line(error)}") from error
        if not inputs and has_inputs(module):
            remedy = "write batch=1, which generates inputs, or give the inputs"
            raise InputsError(
                f"{type(module).__name__} has no inputs to run on: {remedy}"
            ) from error
        if len(inputs) == 1 and isinstance(inputs[0], str):
            raise InputsError(
                f"{inputs[0]!r} is a string, and the module does not run on it: give tensors, and "
                "the name of a GPU as gpu="
            ) from error
        if not inputs and lacks_arguments(error):
            raise InputsError(f"{one_line(error)}; {inputs_needed(module)}") from error
        if len(inputs) != 1 or not is_shape(inputs[0]):
            raise
        sizes = ", ".join(map(str, inputs[0]))
        raise InputsError(
            f"{inputs[0]} is a shape, and the module does not run on it: give a tensor, such as "
            f"torch.empty({sizes})"
        ) from error
