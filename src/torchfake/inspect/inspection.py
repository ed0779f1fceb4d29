"""All answers about a TARGET: its contents, the cost of building it, the memory of a step, its fit.

Input: a TARGET and options, as text, and a :class:`Question`. Output: an :class:`Inspection`, plain
data. Invariant: a model is built once; it is run only if the question needs a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from torchfake._core.gpu_profiles import named_profiles, usual_profiles
from torchfake.errors import (
    CheckpointError,
    InputsError,
)
from torchfake.inspect.contents.complete import WHOLE, CheckpointState, state_of_checkpoint
from torchfake.inspect.contents.schemes import scheme_named, scheme_of_config
from torchfake.inspect.contents.tree import ModuleNode
from torchfake.inspect.contents.weights import Weights, unquantized, weights_by
from torchfake.inspect.dataflow.model_graph import DataflowGraph, graph_of
from torchfake.inspect.inputs.example_inputs import has_inputs
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.fit import Fits
from torchfake.inspect.next_commands import with_commands
from torchfake.inspect.question import (
    Question,
    answer_or_advise,
    check_inputs,
    inputs_for,
)
from torchfake.inspect.records.record import Record
from torchfake.inspect.steps.quantized import library_is_missing
from torchfake.inspect.steps.step import check_trains
from torchfake.inspect.summary import Summary, summary
from torchfake.inspect.targets.build import build
from torchfake.inspect.targets.options import device_named, dtype_named
from torchfake.inspect.targets.resolve import resolve
from torchfake.inspect.targets.saved_tensors import module_of_saved
from torchfake.inspect.targets.target import Target
from torchfake.inspect.targets.transformers_models import BUILT_UNQUANTIZED


@dataclass(frozen=True, repr=False)
class Inspection(Record):
    """A target, the cost of building it, and the answers to a question about it."""

    target: str  # as the user wrote it
    summary: Summary
    resolve_seconds: float  # importing and finding the target
    build_seconds: float  # building the model and reading its tree
    peak_rss_bytes: int | None  # of the process; None if the platform does not report it
    peak_rss_increase_bytes: int | None  # the increase of that peak by building
    notes: tuple[str, ...] = ()
    weights: Weights | None = None  # quantized, if the question or the config says so
    has_inputs: bool = False  # whether inputs can be generated for the model
    estimate: Estimate | None = None  # if the question needs a run
    fits: Fits | None = None  # if the question names GPUs
    graph: DataflowGraph | None = None  # if the question asks for it
    config_words: tuple[str, ...] = ()  # the changes of the config, as on the command line
    option_words: tuple[str, ...] = ()  # the dtype, and how weights are quantized, likewise
    checkpoint: CheckpointState = WHOLE  # what is wrong with the target's files

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
            **({"checkpoint": self.checkpoint.text} if self.checkpoint.text else {}),
            "notes": list(self.notes),
        }
        if self.weights is not None:
            found["weights"] = self.weights.to_dict()
        if self.fits is not None:
            found |= self.fits.to_dict()
        elif self.estimate is not None:
            found["estimate"] = self.estimate.to_dict()
        return found


def inspect_target(
    text: str,
    *,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    device: str = "cpu",
    question: Question | None = None,
) -> Inspection:
    """Build the model that a TARGET names, without its weights, and describe it.

    Args:
        text: a TARGET, see :func:`torchfake.inspect.resolve`.
        overrides: changes of the config or arguments, each as ``key=value``.
        dtype: the name of the floating-point dtype to build in.
        device: the name of the device to build on; no GPU is needed.
        question: what else to find out about the model.

    Raises:
        TargetError: if the target, an override or the dtype is invalid, or building fails.
        InputsError: if inputs cannot be generated.
        CheckError: if the model does not run on its inputs.
        DeviceError: if fakes cannot be on `device`.
        MissingExtraError: if transformers is needed and not installed.

    >>> linear = inspect_target("torch.nn:Linear", overrides=["in_features=3", "out_features=4"])
    >>> linear.tree.size.num_parameters, linear.by_device
    (16, {'cpu': (16, 64)})
    """
    question = question or Question()
    _check_options(question, dtype)
    build_device = device_named(device)
    build_dtype = None if dtype is None else dtype_named(dtype)
    start = time.perf_counter()
    target = resolve(text, overrides=overrides)
    resolve_seconds = time.perf_counter() - start
    built = build(target, dtype=build_dtype, device=build_device)
    module, notes, state = built.module, target.notes, WHOLE
    quantized = _quantized(built.module, target, question)
    if target.saved is not None and not overrides and dtype is None:
        if target.quantization is None or question.runs:
            module, notes, state = _as_saved(target, module, question)
        elif question.weights is None:
            quantized, state = _saved_quantized(target, built.module, quantized)
    runs = question.runs and (question.names_step or not _sizes_alone(module, question))
    answers: dict[str, Any] = (
        answer_or_advise(module, question) if runs else {"summary": summary(module)}
    )
    given = tuple(word for pair in overrides for word in ("--config", pair))
    if answers.get("fits") is not None:
        of_fits = tuple(note for note in notes if note != BUILT_UNQUANTIZED)  # its row says that
        fits = replace(answers["fits"], notes=of_fits)
        answers["fits"] = with_commands(fits, [text, *given], dtype, question)
    named = {"--dtype": dtype, "--weights": question.weights}
    return Inspection(
        target=text,
        resolve_seconds=resolve_seconds,
        build_seconds=built.seconds,
        peak_rss_bytes=built.peak_rss_bytes,
        peak_rss_increase_bytes=built.peak_rss_increase_bytes,
        notes=notes + state.notes,
        checkpoint=state,
        has_inputs=has_inputs(module),
        weights=quantized,
        config_words=given,
        option_words=tuple(w for name, x in named.items() if x for w in (name, x)),
        **answers,
    )


def _check_options(question: Question, dtype: str | None) -> None:
    """Refuse to run weights that are merely cast to 8 bits, unknown schemes, and targets without
    adapters.
    """
    if question.lora is None and question.lora_target:
        raise InputsError("--lora-target names layers of adapters: give their rank, --lora 16")
    if question.weights is not None:
        scheme_named(question.weights)
        if question.names_step:
            check_trains(question.weights, question.lora, trains=question.trains)
    elif question.runs and dtype is not None and dtype_named(dtype).itemsize < 2:
        raise InputsError(
            f"--dtype {dtype}: no kernel multiplies weights that are cast to {dtype} as they "
            "are, so nothing fits; to run quantized weights give --weights fp8"
        )


def _sizes_alone(module: nn.Module, question: Question) -> bool:
    """Whether only the size of quantized weights can be compared with GPUs: the library is missing
    that runs them, or no inputs can be generated.
    """
    if question.weights is None:
        return False
    return library_is_missing(question.weights) or not has_inputs(module)


def _quantized(module: nn.Module, target: Target, question: Question) -> Weights | None:
    """The weights quantized as the question or the target's config says; None if neither does."""
    gpus = question.gpus
    named = {} if gpus is None else named_profiles(gpus) or usual_profiles()
    if question.weights is not None:
        name = question.weights
        return weights_by(module, name, scheme_named(name), named)
    found = scheme_of_config(target.quantization or {})
    return None if found is None else weights_by(module, *found, named)


def _saved_quantized(
    target: Target, module: nn.Module, known: Weights | None
) -> tuple[Weights | None, CheckpointState]:
    """The weights in the files of a quantized checkpoint; `known`, if these cannot be read."""
    assert target.saved is not None
    assert target.quantization is not None
    try:
        tensors = target.saved()
    except CheckpointError as error:
        return known, _unreadable(error)
    found = known or unquantized(module)
    sizes = [math.prod(t.shape) * t.dtype.itemsize for t in tensors.values() if t.dtype is not None]
    held = f"{len(tensors):,} tensors, by the headers of its files"
    method = f"quantization_config: {target.quantization.get('quant_method', 'of its library')}"
    in_files = replace(found, scheme="as saved", library=method, held=held, num_bytes=sum(sizes))
    return in_files, WHOLE


def _unreadable(error: CheckpointError) -> CheckpointState:
    return CheckpointState(
        f"checkpoint unreadable: {error}", loads=False, notes=("sizes are those of its config",)
    )


def _as_saved(
    target: Target, module: nn.Module, question: Question
) -> tuple[nn.Module, tuple[str, ...], CheckpointState]:
    """A module of the tensors in a target's checkpoint, or `module` if it is to be run; notes; and
    what is wrong with the checkpoint.
    """
    assert target.saved is not None
    if question.runs:
        return module, target.notes_of_config, WHOLE
    try:
        tensors = target.saved()
    except CheckpointError as error:
        return module, target.notes, _unreadable(error)
    model = None if type(module) is nn.Module else module  # without a config
    found, notes = module_of_saved(tensors, model)
    as_saved = f"as saved: {len(tensors):,} tensors, from the headers of its files"
    state = WHOLE if model is None else state_of_checkpoint(model, tensors)
    return found, (as_saved, *notes), state


def graph_target(
    text: str,
    question: Question,
    *,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    **options: Any,
) -> DataflowGraph:
    """Build the model that a TARGET names, and return the data flow between its modules.

    Args:
        text: a TARGET.
        question: the inputs or their sizes, and the answers to unknown values.
        overrides: changes of the config or arguments, each as ``key=value``.
        dtype: the name of the floating-point dtype to build in.
        options: options of :func:`torchfake.graph_of`.

    Raises:
        TargetError, InputsError, CheckError: as :func:`inspect_target`.
    """
    build_dtype = None if dtype is None else dtype_named(dtype)
    module = build(resolve(text, overrides=overrides), dtype=build_dtype, device=None).module
    inputs = inputs_for(module, question)
    check_inputs(module, inputs, question)
    return graph_of(module, *inputs, answer=question.answer, **options)
