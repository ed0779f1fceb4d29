"""A question about a model, and the answers that need a run.

Input: a module, and a :class:`Question`. Output: summary, estimate, fits and graph. Invariant: the
module is run on fakes, of given or generated inputs, after a check that it runs on them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from torchfake._core.gpu_profiles import (
    AlikeGpus,
    CudaProfile,
    named_profiles,
    usual_profiles,
)
from torchfake.errors import CheckError, InputsError, TorchFakeError, UnknownValueError
from torchfake.inspect.check import check
from torchfake.inspect.contents.positions import too_long
from torchfake.inspect.copies.workload import workload_of
from torchfake.inspect.dataflow.model_graph import graph_of
from torchfake.inspect.inputs.example_inputs import base_model, sized_inputs
from torchfake.inspect.inputs.given import SHORTER
from torchfake.inspect.inputs.hints import inputs_advice
from torchfake.inspect.inputs.resizing import text_length
from torchfake.inspect.inputs.written import WrittenInputs
from torchfake.inspect.memory.estimate import estimate
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import fit
from torchfake.inspect.records.messages import one_line
from torchfake.inspect.serve import Serve
from torchfake.inspect.steps.adapters import lora_config
from torchfake.inspect.steps.execution import set_training
from torchfake.inspect.summary import summary

DEFAULT_OPTIMIZER = "adamw"
"""The optimizer of a training step for which none is named, as in ``torchfake plan``."""


@dataclass(frozen=True)
class Question:
    """What to find out about a target, in addition to its structure."""

    batch: int | None = None  # batch size of the run
    seq: int | None = None  # sequence length of the run
    train: bool = False  # run a training step, not inference
    optimizer: str | None = None  # of the training step; None: AdamW, "none": without one
    autocast: str | None = None  # the dtype of torch.autocast
    decode: tuple[int, int] | None = None  # numbers of prompt tokens and of new tokens
    gpus: tuple[str | CudaProfile, ...] | None = None  # GPUs to fit on; (): the usual ones
    vary: str | None = None  # find the largest "batch" or "seq" that fits on the GPUs
    answer: str | None = None  # supplies unknown values, by name
    allocator: str | None = None  # options of CUDA's caching allocator
    accumulate: int = 1  # micro-batches of the training step
    keep_gradients: bool = False  # gradients are zeroed between steps, not freed
    serve: Serve | None = None  # the serving workload
    weights: str | None = None  # the scheme by which the weights are quantized
    inputs: tuple[str, ...] = ()  # of forward, as text: "8,64", "ids=int64[8,64]"
    profiles_options: tuple[str, ...] = ()  # options of the command line that name a file of GPUs
    lora: int | None = None  # the rank of LoRA adapters, which are trained in place of the weights
    lora_target: tuple[str, ...] = ()  # the ends of the names of layers that have adapters
    lengths: tuple[int, ...] | None = None  # sequence lengths of several steps, in order
    graph: bool = False  # whether to return the data flow graph too, if the model is run

    @property
    def runs(self) -> bool:
        """Whether the model has to be run to answer the question."""
        return self.names_step or self.gpus is not None

    @property
    def names_step(self) -> bool:
        """Whether the question describes a step, and not only GPUs and weights."""
        options = (self.batch, self.seq, self.optimizer, self.autocast, self.decode)
        given = (*options, self.answer, self.allocator, self.serve, self.lengths)
        return self.trains or bool(self.inputs) or any(option is not None for option in given)

    @property
    def trains(self) -> bool:
        """Whether a training step is run."""
        given = self.optimizer is not None or self.accumulate > 1 or self.lora is not None
        return self.train or given or self.keep_gradients


def answer_or_advise(module: nn.Module, question: Question) -> dict[str, Any]:
    """Run the module, and return the fields of an inspection that need a run.

    Raises:
        UnknownValueError: if the run reads an unknown value; the message names ``--answer``.
    """
    try:
        return _answer(module, question)
    except UnknownValueError as error:
        if question.answer is not None:
            raise
        raise UnknownValueError(f"{error}, on the command line --answer typical") from error


def _answer_served(module: nn.Module, question: Question, serve: Serve) -> dict[str, Any]:
    """The answers if the model is served, which needs no inputs."""
    asked = {
        "--batch": question.batch,
        "--seq": question.seq,
        "--lengths": question.lengths,
        "--input": question.inputs,
        "--decode": question.decode,
        "--train and its options": question.trains,
    }
    if named := [name for name, value in asked.items() if value]:
        raise InputsError(f"--serve says what is run: leave out {', '.join(named)}")
    gpus = question.gpus

    def run(gpu: Any) -> Estimate:
        return estimate(
            module,
            serve=serve,
            weights=question.weights,
            autocast=question.autocast,
            gpu=gpu,
            answer=question.answer,
            allocator=question.allocator,
        )

    found = _on_any_gpu(run, question)
    fits = None if gpus is None else fit(found, *gpus, vary=question.vary)
    return {"summary": summary(module), "estimate": found, "fits": fits}


def _answer(module: nn.Module, question: Question) -> dict[str, Any]:
    """The answers to a question; the module is first checked to run on the inputs."""
    if question.serve is not None:
        return _answer_served(module, question, question.serve)
    trains = question.trains
    set_training(module, "training" if trains else "inference")  # detectors check it, batch norms
    inputs = inputs_for(module, question)
    check_inputs(module, inputs, question)
    gpus = question.gpus
    is_another_run = question.decode is not None or question.lora is not None
    found = _estimate_on_any(module, inputs, question, trains=trains)
    return {
        "summary": summary(module, *(() if is_another_run else inputs), answer=question.answer),
        "estimate": found,
        "fits": None if gpus is None else fit(found, *gpus, vary=question.vary),
        "graph": graph_of(module, *inputs, answer=question.answer) if question.graph else None,
    }


def check_inputs(module: nn.Module, inputs: tuple[Any, ...], question: Question) -> None:
    """Refuse inputs that a module does not run on.

    Raises:
        CheckError: if the module fails; the message may advise to name the dtype of an input.
    """
    try:
        check(module, *inputs, answer=question.answer)
    except CheckError as error:
        cause = error.__cause__
        length = text_length(workload_of(module, inputs))
        if isinstance(cause, Exception) and (refusal := too_long(cause, module, length, SHORTER)):
            raise InputsError(refusal) from error
        advice = ""
        if "index out of range in self" in str(error):
            advice = (
                "an index is past the last row of the table: take a larger vocabulary (--config "
                "vocab_size=...), or if it is a table of positions, a shorter sequence (--seq)"
            )
        elif "scalar types: Long" in str(error) and question.inputs:
            advice = "name the dtype of an input of indices: --input int64[8,64]"
        error.args = (f"{error}; {advice}" if advice else str(error), *error.args[1:])
        raise


def inputs_for(module: nn.Module, question: Question) -> tuple[Any, ...]:
    """The inputs that the question gives as text, otherwise generated inputs."""
    if not question.inputs:
        if base_model(module) is None:
            raise InputsError(inputs_advice(module))
        if question.lengths and question.seq is not None:
            raise InputsError("--lengths gives the lengths itself: leave out --seq")
        seq = max(question.lengths) if question.lengths else question.seq
        sizes: dict[str, Any] = {"batch": question.batch or 1, "seq": seq}
        return (sized_inputs(module, **sizes, labels=question.trains),)
    asked = {"--batch": question.batch, "--seq": question.seq, "--decode": question.decode}
    named = [name for name, value in asked.items() if value is not None]
    if named:
        raise InputsError(f"--input has all sizes: leave out {', '.join(named)}")
    return WrittenInputs(module, question.inputs).make()


def _estimate_on_any(
    module: nn.Module, inputs: tuple[Any, ...], question: Question, *, trains: bool
) -> Estimate:
    """The estimate of a step on all GPUs that run it alike, or on one: see :func:`_on_any_gpu`."""
    run = partial(_estimate, module, inputs, question, trains=trains)
    return _on_any_gpu(run, question)


def _on_any_gpu(run: Callable[[Any], Estimate], question: Question) -> Estimate:
    """The estimate that `run` returns for the GPUs of the question that run the step alike; of
    quantized weights, which are for some GPUs alone, for the first that they run on. On the CPU if
    there is no question of GPUs, or none is named and the step does not run on the first.
    """
    gpus = question.gpus
    if gpus is None:
        return run(None)
    choices: tuple[Any, ...] = gpus or tuple(usual_profiles())
    if question.weights is None:
        named = named_profiles(gpus) or usual_profiles()
        choices = AlikeGpus(*named.values()), *(() if gpus else (None,))
    *others, last = choices
    for other in others:
        with contextlib.suppress(InputsError):
            return run(other)
    return run(last)


def _estimate(
    module: nn.Module, inputs: tuple[Any, ...], question: Question, gpu: Any, *, trains: bool
) -> Estimate:
    lora = question.lora
    peft = None if lora is None else lora_config(module, lora, question.lora_target)
    try:
        return estimate(
            module,
            *inputs,
            optimizer=(question.optimizer or DEFAULT_OPTIMIZER) if trains else None,
            mode="training" if trains else None,
            autocast=question.autocast,
            decode=question.decode,
            gpu=gpu,
            answer=question.answer,
            weights=question.weights,
            peft=peft,
            allocator=question.allocator,
            accumulate=question.accumulate,
            keep_gradients=question.keep_gradients,
            lengths=question.lengths,
        )
    except TorchFakeError:
        raise
    except Exception as error:  # raised by the backward pass or the optimizer
        raise InputsError(f"the step does not run: {one_line(error)}{_moved(error)}") from error


def _moved(error: Exception) -> str:
    """The advice where an operator needs one of the inputs on the CPU, or ""."""
    text = str(error)
    if not (re.search(r"\bcpu\b", text, re.IGNORECASE) and "cuda" in text):
        return ""
    return "; inputs are on the GPU here: where forward needs one on the CPU, call .cpu() on it"
