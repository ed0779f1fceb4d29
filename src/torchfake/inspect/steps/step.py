"""The description of a step, from the options of ``estimate`` and ``plan``.

Input: arguments of ``estimate`` and ``plan``. Output: a :class:`Step`. Invariant: options that
contradict each other are refused before a model is copied or run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from torchfake._core.arguments import is_whole_number
from torchfake.errors import InputsError, TargetError
from torchfake.inspect.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings, parse_settings
from torchfake.inspect.copies.workload import Workload, main_device
from torchfake.inspect.serve import Serve
from torchfake.inspect.steps.quantized import check_runs
from torchfake.inspect.steps.training_arguments import autocast_dtype, check_training_arguments
from torchfake.inspect.targets.options import dtype_named

Loss = Callable[[Any], torch.Tensor]

NO_OPTIMIZER = "none"
"""The name for a training step that ends with the backward pass."""


@dataclass(frozen=True)
class Step:
    """The options of a step: all that is done with a module and its inputs."""

    mode: str  # "training", "forward", "inference", "generation" or "serving"
    optimizer: Any = None
    loss: Loss | None = None
    autocast: torch.dtype | None = None
    decode: tuple[int, int] | None = None  # numbers of prompt tokens and of new tokens
    round_to: int | None = None  # bytes; None: the default of the device
    workspace_bytes: int | None = None  # bytes; None: the default of the device
    allocator: AllocatorSettings = DEFAULT_SETTINGS  # of CUDA's caching allocator
    accumulate: int = 1  # micro-batches of an iteration
    keep_gradients: bool = False  # gradients are zeroed between iterations, not freed
    training: Any = None  # transformers' TrainingArguments, in place of the options above
    peft: Any = None  # the config of PEFT adapters
    weights: str | None = None  # the scheme by which the weights are quantized
    lengths: tuple[int, ...] = ()  # tokens of the sequences of each step, in order
    evaluation: int | None = None  # samples of a pass of evaluation after the steps
    serve: Serve | None = None  # the serving workload
    pages: tuple[Any, ...] = ()  # of a paged cache, what each layer caches, if already known
    made: str | None = None  # the class of the optimizer that a function has made, once it has
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # entered for each micro-batch

    @property
    def optimizer_name(self) -> str | None:
        """The name of the optimizer, as in ``torch.optim`` in lower case; None without one."""
        given = self.optimizer
        if self.training is not None:  # an enumeration, whose values are names
            given = str(getattr(self.training.optim, "value", self.training.optim))
        while isinstance(given, partial):
            given = given.keywords.get("optimizer_class", given.func)  # of ZeRO-1
        if given is None or isinstance(given, str):
            return given
        kind = given if isinstance(given, type) else type(given)
        is_named = isinstance(given, (type, torch.optim.Optimizer))
        if not is_named and self.made is not None:
            return self.made.lower()
        return kind.__name__.lower() if is_named else getattr(given, "__name__", repr(given))


def step_of(
    workload: Workload,
    *,
    mode: str | None = None,
    optimizer: Any = None,
    loss: Any = None,
    autocast: torch.dtype | str | bool | None = None,
    decode: Any = None,
    accumulate: Any = 1,
    keep_gradients: Any = False,
    training: Any = None,
    peft: Any = None,
    weights: Any = None,
    lengths: Any = None,
    evaluation: Any = None,
    round_to: Any = None,
    workspace_bytes: Any = None,
    allocator: str | None = None,
) -> Step:
    """The step that these arguments of :func:`torchfake.estimate` describe.

    Raises:
        InputsError: if an argument is invalid, or contradicts another one.
    """
    if training is not None:
        given = {"optimizer": optimizer, "loss": loss, "autocast": autocast, "decode": decode}
        loop = {"mode": mode, "accumulate": accumulate, "keep_gradients": keep_gradients}
        _check_trainer_options(training, {**given, **loop})
        mode = "training"
    if isinstance(optimizer, str) and optimizer.lower() == NO_OPTIMIZER:
        mode, optimizer = mode or "training", None
    mode = _resolve_mode(mode, optimizer, loss, decode)
    _check_values(decode, loss, round_to, workspace_bytes)
    _check_accumulation(mode, accumulate, keep_gradients)
    check_trains(weights, peft, trains=mode == "training")
    autocast_dtype = _autocast_dtype(autocast, workload)
    settings = DEFAULT_SETTINGS if allocator is None else parse_settings(allocator)
    return Step(
        mode,
        optimizer,
        loss,
        autocast_dtype,
        decode,
        round_to,
        workspace_bytes,
        settings,
        accumulate,
        keep_gradients,
        training,
        peft,
        weights,
        _lengths(lengths, decode),
        _evaluation(evaluation, mode),
    )


def check_trains(weights: Any, peft: Any, *, trains: bool) -> None:
    """Refuse a scheme whose layers cannot be run, and training without weights to train.

    Raises:
        InputsError: if `weights` is no scheme that can be run, or is trained without adapters.
        MissingExtraError: if the scheme's library is not installed.
    """
    if weights is None:
        return
    check_runs(weights)
    if trains and peft is None:
        raise InputsError(
            f"weights={weights!r}: quantized weights are not trained; train adapters beside them "
            "(QLoRA): peft=LoraConfig(...), on the command line --lora 16"
        )


def _check_trainer_options(training: Any, options: Mapping[str, Any]) -> None:
    check_training_arguments(training)
    for name, value in options.items():
        if value is not None and (name, value) not in [*_DEFAULTS, ("mode", "training")]:
            raise InputsError(f"{name}= and training=: TrainingArguments say that themselves")


def serving_step(serve: Serve, step: Step, inputs: tuple[Any, ...]) -> Step:
    """The step that serves sequences; `step` is what the other options of ``estimate`` describe.

    Raises:
        InputsError: if the options are incompatible with serving.
    """
    if not isinstance(serve, Serve):
        raise InputsError(f"serve={serve!r} is not a torchfake.Serve(context=..., users=...)")
    if inputs:
        raise InputsError("serve= makes the token ids itself: leave out the inputs")
    if step.mode != "inference":
        raise InputsError("serve= is inference: leave out optimizer=, decode=, loss= and mode=")
    if step.lengths:
        raise InputsError("lengths= and serve=: serve= gives the lengths itself")
    return replace(step, mode="serving", serve=serve)


def check_program_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a step that is a function, since the function does all by itself.

    Raises:
        InputsError: if an option is not its default.
    """
    for name, value in options.items():
        is_default = value is None or (name, value) in _DEFAULTS
        if not is_default:
            raise InputsError(f"{name}= is for a module: a function does that itself")


_DEFAULTS = [("accumulate", 1), ("keep_gradients", False)]


def _check_accumulation(mode: str, accumulate: Any, keep_gradients: Any) -> None:
    if not is_whole_number(accumulate, 1):
        raise InputsError(f"accumulate={accumulate!r} is not a whole number of 1 or more")
    if not isinstance(keep_gradients, bool):
        raise InputsError(f"keep_gradients={keep_gradients!r} is not True or False")
    if mode != "training" and (accumulate != 1 or keep_gradients):
        name = f"accumulate={accumulate}" if accumulate != 1 else "keep_gradients=True"
        raise InputsError(f"{name} is for training: give an optimizer=, a loss= or mode='training'")


def _lengths(lengths: Any, decode: Any) -> tuple[int, ...]:
    """The lengths as a tuple.

    Raises:
        InputsError: if they are no list of whole numbers, or if the step has lengths of its own.
    """
    if lengths is None:
        return ()
    if decode is not None:
        raise InputsError("lengths= and decode=: decode= gives the lengths itself")
    is_list = isinstance(lengths, (list, tuple)) and len(lengths) > 0
    if not is_list or not all(is_whole_number(n, 1) for n in lengths):
        raise InputsError(
            f"lengths={lengths!r:.60}: give a list of numbers of tokens, one for each step"
        )
    return tuple(lengths)


def _evaluation(evaluation: Any, mode: str) -> int | None:
    if evaluation is None:
        return None
    if not is_whole_number(evaluation, 1):
        raise InputsError(f"evaluation={evaluation!r} is not a batch size of 1 or more")
    if mode != "training":
        raise InputsError("evaluation= is a pass in the memory of training: give an optimizer=")
    return int(evaluation)


def evaluation_of(step: Step) -> Step:
    """The pass of evaluation after a training step: with its autocast, without gradients."""
    cast = step.autocast if step.training is None else autocast_dtype(step.training)
    plain = replace(step, optimizer=None, training=None, accumulate=1, keep_gradients=False)
    return replace(plain, mode="inference", autocast=cast, lengths=(), evaluation=None)


def _resolve_mode(mode: str | None, optimizer: Any, loss: Any, decode: Any) -> str:
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


def _check_values(decode: Any, loss: Any, round_to: Any, workspace_bytes: Any) -> None:
    if loss is not None and not callable(loss):
        raise InputsError(f"loss={loss!r} is not a function of the output")
    for name, value, least in (("round_to", round_to, 1), ("workspace_bytes", workspace_bytes, 0)):
        if value is not None and not is_whole_number(value, least):
            raise InputsError(f"{name}={value!r} is not a whole number of {least} or more")
    if decode is None:
        return
    is_pair = isinstance(decode, tuple) and len(decode) == 2
    if not is_pair or not all(isinstance(n, int) and n > 0 for n in decode):
        raise InputsError(f"decode={decode!r}: give (prompt, new_tokens), two lengths of 1 or more")


def _autocast_dtype(
    requested: torch.dtype | str | bool | None, workload: Workload
) -> torch.dtype | None:
    if requested is None or requested is False:
        return None
    if isinstance(requested, str):
        try:
            return dtype_named(requested)
        except TargetError as error:
            raise TargetError(f"autocast is {requested!r}: {error}") from None
    if isinstance(requested, torch.dtype) and requested.is_floating_point:
        return requested
    if requested is not True:
        raise InputsError(
            f"autocast is {requested!r}: give a floating point dtype or its name, True for the "
            "device's own, or None"
        )
    device = workload.device or main_device(workload.module, workload.held_by_inputs)
    return torch.get_autocast_dtype(device.type)
