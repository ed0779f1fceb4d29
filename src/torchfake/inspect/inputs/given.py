"""Inputs as people give them: tensors, sizes for which they are made up, shapes.

Input: the arguments of a public function. Output: a module's inputs. Invariant: tensors that are
given are passed on as they are; what contradicts itself is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torchfake._core.arguments import is_whole_number
from torchfake.errors import InputsError, TorchFakeError
from torchfake.inspect.describe.messages import one_line
from torchfake.inspect.inputs.example_inputs import example_inputs

INPUTS_NEEDED = "give its inputs after the module, or input_size=(2, 64)"
"""What to write where a module is run without inputs."""

Shape = Sequence[int]


def inputs_given(
    module: nn.Module,
    inputs: tuple[Any, ...],
    *,
    batch: int | None = None,
    seq: int | None = None,
    input_size: Shape | Sequence[Shape] | None = None,
    labels: bool = False,
) -> tuple[Any, ...]:
    """The inputs of a module: those that are given, or else such as were asked for.

    Args:
        module: what is to run on them.
        inputs: what was given.
        batch: the batch size of inputs that are made up for a model of transformers.
        seq: their sequence length.
        input_size: the shape of a tensor of the default dtype, or a list of such shapes.
        labels: whether the inputs that are made up have labels.

    Raises:
        InputsError: if several of these are given, or no inputs can be made up.
    """
    sizes = {"batch": batch, "seq": seq, "input_size": input_size}
    asked = [f"{name}=" for name, value in sizes.items() if value is not None]
    if not asked:
        return inputs
    if inputs:
        raise InputsError(f"both inputs and {' and '.join(asked)} are given: give one of them")
    if input_size is None:
        made = example_inputs(module, batch=1 if batch is None else batch, seq=seq, labels=labels)
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
    """Whether this is a tuple or list of sizes."""
    is_sequence = isinstance(value, (list, tuple)) and len(value) > 0
    return is_sequence and all(is_whole_number(size, 0) for size in value)


def lacks_arguments(error: BaseException) -> bool:
    """Whether a function was called without arguments that it needs."""
    return isinstance(error, TypeError) and " missing " in str(error)


@contextmanager
def inputs_explained(module: nn.Module, inputs: tuple[Any, ...]) -> Iterator[None]:
    """Context of a run: where it fails without inputs, or on a shape in place of a tensor, the
    error says so.
    """
    try:
        yield
    except TorchFakeError:
        raise
    except Exception as error:
        if not inputs and hasattr(module, "main_input_name"):  # of transformers
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
            raise InputsError(f"{one_line(error)}; {INPUTS_NEEDED}") from error
        if len(inputs) != 1 or not is_shape(inputs[0]):
            raise
        sizes = ", ".join(map(str, inputs[0]))
        raise InputsError(
            f"{inputs[0]} is a shape, and the module does not run on it: give a tensor, such as "
            f"torch.empty({sizes})"
        ) from error
