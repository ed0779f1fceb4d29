"""All answers about a TARGET: what it is, what building it cost, what a step takes, where it fits.

Input: a TARGET and options, as text, and a :class:`Question`. Output: an :class:`Inspection`, plain
data. Invariant: a model is built once; it is run only if the question needs that.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from torchfake._core.gpu_profiles import CudaProfile, named_profiles, usual_profiles
from torchfake.errors import (
    CheckError,
    CheckpointError,
    InputsError,
    TorchFakeError,
    UnknownValueError,
)
from torchfake.inspect import several_gpus
from torchfake.inspect.base_record import Record
from torchfake.inspect.check import check
from torchfake.inspect.describe.messages import one_line
from torchfake.inspect.estimates import Estimate
from torchfake.inspect.fit import Fits, fit
from torchfake.inspect.inputs.example_inputs import base_model, example_inputs
from torchfake.inspect.inputs.written import WrittenInputs, inputs_advice
from torchfake.inspect.memory import estimate
from torchfake.inspect.model_graph import DataflowGraph, graph_of
from torchfake.inspect.serve import Serve
from torchfake.inspect.summary import Summary, summary
from torchfake.inspect.targets.build import build
from torchfake.inspect.targets.options import device_named, dtype_named
from torchfake.inspect.targets.resolve import resolve
from torchfake.inspect.targets.saved_tensors import module_of_saved
from torchfake.inspect.targets.target import Target
from torchfake.inspect.tree import ModuleNode
from torchfake.inspect.weights import (
    Weights,
    scheme_named,
    scheme_of_config,
    unquantized,
    weights_by,
)

SIZES_OF_CONFIG = "sizes are those of its config: "
"""The beginning of a note on a checkpoint that cannot be read."""


@dataclass(frozen=True, repr=False)
class Inspection(Record):
    """A target, the cost of building it, and the answers to a question about it."""

    target: str  # as the user wrote it
    summary: Summary
    resolve_seconds: float  # importing and finding the target
    build_seconds: float  # building the model and reading its tree
    peak_rss_bytes: int | None  # of the process; None where the platform does not report it
    peak_rss_increase_bytes: int | None  # by how much building raised it
    notes: tuple[str, ...] = ()
    weights: Weights | None = None  # quantized, if that was asked, or its config says so
    has_inputs: bool = False  # whether inputs can be made up for it, to run it
    estimate: Estimate | None = None  # if the question needs a run
    fits: Fits | None = None  # if it names GPUs
    graph: DataflowGraph | None = None  # if it is asked for

    @property
    def tree(self) -> ModuleNode:
        """The model's tree."""
        return self.summary.tree

    @property
    def memory(self) -> Fits | Estimate | None:
        """The memory results: the fits, which contain the estimate, or the estimate."""
        return self.fits if self.fits is not None else self.estimate

    @property
    def by_device(self) -> dict[str, tuple[int, int]]:
        """Values and bytes of parameters and buffers by device, the largest first."""
        return self.summary.by_device

    def to_dict(self, *, depth: int | None = None) -> dict[str, Any]:
        """Everything as a dict for JSON, with `depth` levels of the tree."""
        found = {
            "target": self.target,
            **self.summary.to_dict(depth=depth),
            "resolve_seconds": self.resolve_seconds,
            "build_seconds": self.build_seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
            "peak_rss_increase_bytes": self.peak_rss_increase_bytes,
            "notes": list(self.notes),
        }
        if self.weights is not None:
            found["weights"] = self.weights.to_dict()
        if self.estimate is not None:
            found["estimate"] = self.estimate.to_dict()
        if self.fits is not None:
            found["fits"] = [fit.to_dict() for fit in self.fits]
        return found


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


def inspect_target(
    text: str,
    *,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    device: str = "cpu",
    question: Question = Question(),
) -> Inspection:
    """Build what a TARGET names, without its weights, and describe it.

    Args:
        text: a TARGET, see :func:`torchfake.inspect.resolve`.
        overrides: changes of the config or arguments, each as ``key=value``.
        dtype: the name of the floating-point dtype to build in.
        device: the name of the device to build on; no GPU is needed.
        question: what else to find out about it.

    Raises:
        TargetError: if the target, an override or the dtype is invalid, or building fails.
        InputsError: if inputs cannot be generated.
        CheckError: if the model does not run on them.
        DeviceError: if fakes cannot be on `device`.
        MissingExtraError: if transformers is needed and not installed.

    >>> linear = inspect_target("torch.nn:Linear", overrides=["in_features=3", "out_features=4"])
    >>> linear.tree.size.num_parameters, linear.by_device
    (16, {'cpu': (16, 64)})
    """
    _check_weights(question, dtype)
    build_device = device_named(device)
    build_dtype = None if dtype is None else dtype_named(dtype)
    start = time.perf_counter()
    target = resolve(text, overrides=overrides)
    resolve_seconds = time.perf_counter() - start
    built = build(target, dtype=build_dtype, device=build_device)
    module, notes = built.module, target.notes
    quantized = _quantized(built.module, target, question)
    if target.saved is not None and not overrides and dtype is None:
        if target.quantization is None or question.runs:
            module, notes = _as_saved(target, module, question)
        elif question.weights is None:
            quantized = _saved_quantized(target, built.module, quantized)
    runs = question.runs and question.weights is None
    answers: dict[str, Any] = (
        _answer_or_advise(module, question) if runs else {"summary": summary(module)}
    )
    if answers.get("fits") is not None:
        given = [word for pair in overrides for word in ("--config", pair)]
        answers["fits"] = _with_commands(answers["fits"], [text, *given], dtype, question)
    return Inspection(
        target=text,
        resolve_seconds=resolve_seconds,
        build_seconds=built.seconds,
        peak_rss_bytes=built.peak_rss_bytes,
        peak_rss_increase_bytes=built.peak_rss_increase_bytes,
        notes=notes,
        has_inputs=hasattr(module, "main_input_name"),  # it is of transformers
        weights=quantized,
        **answers,
    )


def _check_weights(question: Question, dtype: str | None) -> None:
    """Refuse what no kernel runs, and what is not asked together."""
    if question.weights is not None:
        scheme_named(question.weights)
    if question.weights is None:
        if question.runs and dtype is not None and dtype_named(dtype).itemsize < 2:
            raise InputsError(
                f"--dtype {dtype}: no kernel multiplies weights that are cast to {dtype} as they "
                "are, so nothing fits; for the size of quantized weights give --weights fp8, and "
                "to run a quantized model quantize it (its library's layers run as fakes)"
            )
        return
    alone = replace(question, weights=None, gpus=None, vary=None)
    if alone.runs:
        raise InputsError(
            "--weights is the size of the weights alone: leave out what is to be run, such as "
            "--batch, --seq, --train and --serve"
        )


def _quantized(module: nn.Module, target: Target, question: Question) -> Weights | None:
    """The weights quantized as the question says, or as the target's config does."""
    gpus = question.gpus
    named = {} if gpus is None else named_profiles(gpus) or usual_profiles()
    if question.weights is not None:
        name = question.weights
        return weights_by(module, name, scheme_named(name), named)
    found = scheme_of_config(target.quantization or {})
    return None if found is None else weights_by(module, *found, named)


def _saved_quantized(target: Target, module: nn.Module, known: Weights | None) -> Weights | None:
    """The bytes in the files of a quantized checkpoint; what its config says, without them."""
    assert target.saved is not None
    assert target.quantization is not None
    try:
        tensors = target.saved()
    except CheckpointError:
        return known
    found = known or unquantized(module)
    sizes = [math.prod(t.shape) * t.dtype.itemsize for t in tensors.values() if t.dtype is not None]
    held = f"{len(tensors):,} tensors, by the headers of its files"
    method = f"quantization_config: {target.quantization.get('quant_method', 'of its library')}"
    return replace(found, scheme="as saved", library=method, held=held, num_bytes=sum(sizes))


def _as_saved(
    target: Target, module: nn.Module, question: Question
) -> tuple[nn.Module, tuple[str, ...]]:
    """What is in the checkpoint of a target, if it is not to be run, and notes."""
    assert target.saved is not None
    if question.runs:
        return module, (*target.notes, "built from its config: its checkpoint was not read")
    try:
        tensors = target.saved()
    except CheckpointError as error:
        return module, (*target.notes, f"{SIZES_OF_CONFIG}{error}")
    found, notes = module_of_saved(tensors, module if type(module) is not nn.Module else None)
    return found, (f"as saved: {len(tensors):,} tensors, from the headers of its files", *notes)


def _answer_or_advise(module: nn.Module, question: Question) -> dict[str, Any]:
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
    inputs = _inputs(module, question)
    _check(module, inputs, question)
    found = _estimate(module, inputs, question, trains=trains)
    gpus = question.gpus
    return {
        "summary": summary(module, *inputs, answer=question.answer),
        "estimate": found,
        "fits": None if gpus is None else fit(found, *gpus, vary=question.vary),
        "graph": graph_of(module, *inputs, answer=question.answer) if question.graph else None,
    }


def _check(module: nn.Module, inputs: tuple[Any, ...], question: Question) -> None:
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


def _inputs(module: nn.Module, question: Question) -> tuple[Any, ...]:
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


def _with_commands(
    fits: Fits, target: Sequence[str], dtype: str | None, question: Question
) -> Fits:
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


def graph_target(
    text: str,
    question: Question,
    *,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    **options: Any,
) -> DataflowGraph:
    """Build what a TARGET names, and find what its modules pass to each other.

    Args:
        text: a TARGET.
        question: its sizes, its inputs, and who answers.
        overrides: ``key=value`` each, for its config or arguments.
        dtype: the floating point dtype to build in, by name.
        options: those of :func:`torchfake.graph_of`.

    Raises:
        TargetError: as of :func:`inspect_target`; as are InputsError and CheckError.
    """
    build_dtype = None if dtype is None else dtype_named(dtype)
    module = build(resolve(text, overrides=overrides), dtype=build_dtype, device=None).module
    inputs = _inputs(module, question)
    _check(module, inputs, question)
    return graph_of(module, *inputs, answer=question.answer, **options)
