"""What a user says of a step, checked.

Enters: arguments of estimate and of plan. Leaves: a step that can be run. Invariant: arguments that
contradict each other are refused before anything is built.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torchfake.errors import InputsError
from torchfake.inspect.build import dtype_named
from torchfake.inspect.steps import Step
from torchfake.inspect.subject import Subject


def step_of(
    subject: Subject,
    mode: str | None,
    optimizer: Any,
    loss: Any,
    autocast: torch.dtype | str | bool | None,
    decode: Any,
    round_to: Any,
    workspace_bytes: Any,
) -> Step:
    """The step that these arguments of :func:`torchfake.estimate` mean.

    Raises:
        InputsError: naming the argument.
    """
    mode = _mode(mode, optimizer, loss, decode)
    _check(decode, loss, round_to, workspace_bytes)
    cast = _autocast(autocast, subject)
    return Step(mode, optimizer, loss, cast, decode, round_to, workspace_bytes)


def _mode(mode: str | None, optimizer: Any, loss: Any, decode: Any) -> str:
    if mode not in (None, "training", "forward", "inference"):
        raise InputsError(f"mode={mode!r} is not training, forward or inference")
    trains = optimizer is not None or mode == "training"
    if decode is not None and (trains or loss is not None or mode == "forward"):
        raise InputsError("decode= is inference: leave out optimizer=, loss= and mode=")
    if optimizer is not None and mode not in (None, "training"):
        raise InputsError(f"an optimizer is for training: leave out optimizer= or mode={mode!r}")
    if decode is not None:
        return "generation"
    return mode or ("training" if trains or loss is not None else "inference")


def _check(decode: Any, loss: Any, round_to: Any, workspace_bytes: Any) -> None:
    if loss is not None and not callable(loss):
        raise InputsError(f"loss={loss!r} is not a function of the output")
    for name, value, least in (("round_to", round_to, 1), ("workspace_bytes", workspace_bytes, 0)):
        if value is not None and (not isinstance(value, int) or value < least):
            raise InputsError(f"{name}={value!r} is not a whole number of {least} or more")
    if decode is None:
        return
    is_pair = isinstance(decode, tuple) and len(decode) == 2
    if not is_pair or not all(isinstance(n, int) and n > 0 for n in decode):
        raise InputsError(f"decode={decode!r}: give (prompt, new_tokens), two lengths of 1 or more")


def _autocast(wanted: torch.dtype | str | bool | None, subject: Subject) -> torch.dtype | None:
    if wanted is None or wanted is False:
        return None
    if isinstance(wanted, str):
        return dtype_named(wanted)
    if isinstance(wanted, torch.dtype):
        return wanted
    device = subject.device or main_device(subject.module)
    return torch.get_autocast_dtype(device.type)


def main_device(module: nn.Module) -> torch.device:
    """The device that most bytes of its parameters and buffers are on."""
    sizes: dict[torch.device, int] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.nbytes
    return max(sizes, key=lambda device: sizes[device]) if sizes else torch.device("cpu")
