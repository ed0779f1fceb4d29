"""A question about a model, and its answers that need a run.

Input: a module, and a :class:`Question`. Output: summary, estimate, fits and graph. Invariant: the
module is run on fakes of inputs, given or made up, and is checked to run on them before.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.errors import CheckError, InputsError, TorchFakeError, UnknownValueError
from torchfake.inspect.check import check
from torchfake.inspect.dataflow.model_graph import graph_of
from torchfake.inspect.inputs.example_inputs import base_model, example_inputs
from torchfake.inspect.inputs.written import WrittenInputs, inputs_advice
from torchfake.inspect.memory import several_gpus
from torchfake.inspect.memory.estimate import estimate
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fits, fit
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.serve import Serve
from torchfake.inspect.summary import summary


@dataclass(frozen=True)
class Question:
    """What to find out about a target, in addition to its structure."""

    batch: int | None = None  # run it on a batch of this size
    seq: int | None = None  # of sequences of this length
    train: bool = False  # a training step, not inference
    optimizer: str | None = None  # of the training step
    autocast: str | None = None  # the dtype of torch.autocast
    decode: tuple[int, int] | None = None  # tokens in the prompt, and new ones
    gpus: tuple[str | CudaProfile, ...] | None = None  # whether it fits on these; () for all
    vary: str | None = None  # find the largest "batch" or "seq" that fits on them
    answer: str | None = None  # of questions about values that do not exist, by name
    allocator: str | None = None  # options of CUDA's caching allocator
    accumulate: int = 1  # micro-batches of the training step
    keep_gradients: bool = False  # between steps, set to zero
    serve: Serve | None = None  # sequences that are to be served
    weights: str | None = None  # the size of the weights quantized so; nothing is run
    inputs: tuple[str, ...] = ()  # of forward, as text: "8,64", "ids=int64[8,64]"
    profiles_options: tuple[str, ...] = ()  # of the command line: the file of the GPUs
    graph: bool = False  # what its modules pass to each other, too, if it is run

    @property
    def runs(self) -> bool:
        """Whether the model has to be run to answer it."""
        options = (self.batch, self.seq, self.optimizer, self.autocast, self.decode)
        given = (*options, self.gpus, self.answer, self.allocator, self.serve)
        return self.trains or bool(self.inputs) or any(option is not None for option in given)

    @property
    def trains(self) -> bool:
        """Whether a training step is run."""
        given = self.optimizer is not None or self.accumulate > 1
        return self.train or given or self.keep_gradients


def answer_or_advise(module: nn.Module, question: Question) -> dict[str, Any]:
    """The fields of an inspection that need a run.

    Raises:
        UnknownValueError: naming the option by which values are answered; and what a run raises.
    """
    try:
        return _answer(module, question)
    except UnknownValueError as error:
        if question.answer is not None:
            raise
        raise UnknownValueError(f"{error}, on the command line --answer typical") from error


def _answer_served(module: nn.Module, question: Question, serve: Serve) -> dict[str, Any]:
    """What serving takes; token ids are made as they are needed."""
    if question.trains or any((question.batch, question.seq, question.decode, question.inputs)):
        raise InputsError(
            "--serve says what is run: leave out --batch, --seq, --input, --decode, --train"
        )
    gpus = question.gpus
    found = estimate(
        module,
        serve=serve,
        autocast=question.autocast,
        gpu=gpus[0] if gpus else None,
        answer=question.answer,
        allocator=question.allocator,
    )
    fits = None if gpus is None else fit(found, *gpus, vary=question.vary)
    return {"summary": summary(module), "estimate": found, "fits": fits}


def _answer(module: nn.Module, question: Question) -> dict[str, Any]:
    """Make inputs, check that the module runs on them, then run the step and the summary."""
    if question.serve is not None:
        return _answer_served(module, question, question.serve)
    trains = question.trains
    inputs = inputs_for(module, question)
    check_inputs(module, inputs, question)
    found = _estimate(module, inputs, question, trains=trains)
    gpus = question.gpus
    return {
        "summary": summary(module, *inputs, answer=question.answer),
        "estimate": found,
        "fits": None if gpus is None else fit(found, *gpus, vary=question.vary),
        "graph": graph_of(module, *inputs, answer=question.answer) if question.graph else None,
    }


def check_inputs(module: nn.Module, inputs: tuple[Any, ...], question: Question) -> None:
    """Refuse inputs that a module does not run on.

    Raises:
        CheckError: naming where it fails, and the option by which inputs are given a dtype.
    """
    try:
        check(module, *inputs, answer=question.answer)
    except CheckError as error:
        if "scalar types: Long" not in str(error) or not question.inputs:
            raise
        error.args = (
            f"{error}; name the dtype of an input of indices: --input int64[8,64]",
            *error.args[1:],
        )
        raise


def inputs_for(module: nn.Module, question: Question) -> tuple[Any, ...]:
    """The inputs that are given, or else made up."""
    if not question.inputs:
        if base_model(module) is None:
            raise InputsError(inputs_advice(module))
        sizes: dict[str, Any] = {"batch": question.batch or 1, "seq": question.seq}
        return (example_inputs(module, **sizes, labels=question.trains),)
    asked = {"--batch": question.batch, "--seq": question.seq, "--decode": question.decode}
    named = [name for name, value in asked.items() if value is not None]
    if named:
        raise InputsError(f"--input has all sizes: leave out {', '.join(named)}")
    return WrittenInputs(module, question.inputs).make()


def _estimate(
    module: nn.Module, inputs: tuple[Any, ...], question: Question, *, trains: bool
) -> Estimate:
    gpus = question.gpus
    try:
        return estimate(
            module,
            *inputs,
            optimizer=question.optimizer,
            mode="training" if trains else None,
            autocast=question.autocast,
            decode=question.decode,
            gpu=gpus[0] if gpus else None,
            answer=question.answer,
            allocator=question.allocator,
            accumulate=question.accumulate,
            keep_gradients=question.keep_gradients,
        )
    except TorchFakeError:
        raise
    except Exception as error:  # of the backward pass, or the optimizer
        raise InputsError(f"the step does not run: {one_line(error)}") from error


def with_commands(fits: Fits, target: Sequence[str], dtype: str | None, question: Question) -> Fits:
    """With what to run where it fits on none, as commands."""
    if fits.fits:
        return fits
    commands, names = [], [fit.gpu for fit in fits]
    gpus = ["--gpu", ",".join(names), *question.profiles_options] if question.gpus else []
    if not question.trains and question.serve is None:
        sizes = {"--batch": question.batch, "--seq": question.seq}
        words = [word for name, size in sizes.items() if size for word in (name, str(size))]
        words += [word for given in question.inputs for word in ("--input", given)]
        is_large = dtype is None and any(
            p.dtype == torch.float32 for p in fits.estimate.subject.module.parameters()
        )
        smaller = [*words, "--dtype", "bf16"] if is_large else ["--weights", "int4"]
        commands.append(shlex.join(["torchfake", "fit", *target, *smaller, *gpus]))
    if fits.layout is not None and question.serve is None and question.decode is None:
        options = [*target[1:], *question.profiles_options]
        options += [] if question.answer is None else ["--answer", question.answer]
        commands.append(several_gpus.command(fits.layout, target[0], options, question.inputs))
    return replace(fits, next_commands=tuple(commands))
