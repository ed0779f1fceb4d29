"""A TARGET of the command line, planned: does it train on these GPUs, laid out in this way.

Input: a TARGET, numbers of GPUs, tokens and samples, and names of options. Output: a
:class:`TargetPlan`, plain data. Invariant: the numbers are those of ``plan`` for the code that is
in the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from torchfake._core.gpu_profiles import DEFAULT_PROFILE, CudaProfile
from torchfake.distributed.parallelize.context import (
    check_length,
    is_of_transformers,
    whole_sequences,
)
from torchfake.distributed.parallelize.mesh_axes import MeshAxes, mesh_axes, parse_mesh
from torchfake.distributed.plan import Plan, plan
from torchfake.distributed.strategies.batch import Batch, batch_of
from torchfake.distributed.strategies.pipelines import inputs_and_target, micro_batches
from torchfake.distributed.strategies.step_time import StepTime, step_time
from torchfake.distributed.strategies.strategy import Strategy
from torchfake.errors import InputsError, UnknownValueError
from torchfake.inspect.base_record import Record
from torchfake.inspect.estimates import Estimate
from torchfake.inspect.inputs.example_inputs import base_model, example_inputs
from torchfake.inspect.inputs.written import WrittenInputs, inputs_advice
from torchfake.inspect.targets.build import build, construct
from torchfake.inspect.targets.resolve import resolve
from torchfake.inspect.targets.target import Target
from torchfake.inspect.timing.hardware import utilization

_DTYPES = {"mixed": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16}
_MOST_RUN = 2
"""Micro-batches of a step that are run: from the second on each finds gradients, and all later ones
are as the second.
"""


@dataclass(frozen=True, repr=False)
class TargetPlan(Record):
    """A plan of a TARGET: the assumptions, the results, and the code of the layout."""

    target: str  # as the user wrote it
    strategy: Strategy
    batch: Batch
    seq: int | None  # tokens of a sequence, if the inputs have any
    optimizer: str
    plan: Plan
    code: str  # to paste
    time: StepTime | None = None  # of a step; None if the figures of the GPU are not known
    notes: tuple[str, ...] = ()
    shows_code: bool = False  # whether its text ends with the code

    @property
    def fits(self) -> bool:
        """Whether the peak reserved memory fits on the GPU."""
        return bool(self.plan.fits)

    @property
    def estimate(self) -> Estimate:
        """The step of the ranks with the highest peak."""
        return self.plan.highest.estimate

    @property
    def class_name(self) -> str:
        """The class of the model."""
        return self.plan.class_name

    @property
    def step_seconds(self) -> float | None:
        """The time of a step: all micro-batches and the optimizer."""
        return None if self.time is None else self.time.seconds

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second, on all GPUs together."""
        return self.batch.size / self.time.seconds if self.time and self.time.seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second, on each GPU."""
        samples, num_ranks = self.samples_per_second, self.plan.layout.num_ranks
        return None if samples is None or self.seq is None else samples * self.seq / num_ranks

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, as that of a plan."""
        if self.time is None:
            return None
        return utilization(self.time.model_flops, self.time.seconds, self.plan.gpu)

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON."""
        return {
            "target": self.target,
            "fits": self.fits,
            "step_seconds": self.step_seconds,
            "tokens_per_second": self.tokens_per_second,
            "samples_per_second": self.samples_per_second,
            "mfu": self.mfu,
            "batch": self.batch.size,
            "micro_batch": self.batch.micro,
            "accumulate": self.batch.accumulate,
            "data_ranks": self.batch.data_ranks,
            "seq": self.seq,
            "checkpoint": self.strategy.checkpoint,
            "precision": self.strategy.precision,
            "engine": self.strategy.engine,
            "zero": self.strategy.zero,
            "sequence_parallel": self.strategy.sequence_parallel,
            "offload": self.strategy.offload,
            "schedule": self.strategy.schedule_name,
            "optimizer": self.optimizer,
            "plan": self.plan.to_dict(),
            "code": self.code,
            "notes": list(self.notes),
        }


def plan_target(
    text: str,
    *,
    gpus: int | None = None,
    mesh: str | Mapping[str, int] | None = None,
    gpu: str | CudaProfile = DEFAULT_PROFILE,
    seq: int | None = None,
    batch: int | None = None,
    micro_batch: int | None = None,
    accumulate: int | None = None,
    checkpoint: str | int = "none",
    precision: str = "mixed",
    optimizer: str = "adamw",
    zero: int | None = None,
    offload: bool = False,
    overrides: Sequence[str] = (),
    inputs: str | Sequence[str] | None = None,
    answer: str | None = None,
    allocator: str | None = None,
    sequence_parallel: bool = False,
    schedule: str | None = None,
    engine: str = "fsdp2",
    shows_code: bool = False,
) -> TargetPlan:
    """Plan the training of the model that a TARGET names, with a layout derived from the model.

    Args:
        text: a TARGET, see :func:`torchfake.inspect.resolve`.
        gpus: the number of GPUs, by default the size of `mesh`.
        mesh: the sizes of the axes, as for :class:`Strategy`; by default all GPUs are along ``dp``.
        gpu: the GPU type.
        seq: the sequence length in tokens; by default as in :func:`torchfake.example_inputs`.
        batch: the global batch size of a step.
        micro_batch: the batch size of one forward pass on a data-parallel rank.
        accumulate: the number of micro-batches in a step.
        checkpoint: activation checkpointing, as for :class:`Strategy`.
        precision: as for :class:`Strategy`; parameters are float32 in ``"mixed"`` and ``"fp32"``,
            whatever the dtype in the config.
        optimizer: the name of an optimizer in ``torch.optim``.
        zero: 3 or 2, with ``engine="ddp"`` 0 or 1, as for :class:`Strategy`.
        offload: keep shards in CPU memory.
        overrides: changes of the config or arguments, each as ``key=value``.
        inputs: ``package.module:function`` or ``path/to/file.py:function``, which returns the
            arguments of the forward pass and takes ``batch`` and, if given, ``seq``; not needed for
            transformers models. Or a list of inputs as text, such as ``["8,64"]`` or
            ``["ids=int64[8,64]"]``, whose first size is replaced by the micro-batch size.
        answer: supplies unknown values: ``"typical"``.
        allocator: options of CUDA's caching allocator.
        sequence_parallel: also split the sequence along ``tp``, as for :class:`Strategy`.
        schedule: the pipeline schedule, as for :class:`Strategy`; its micro-batches are those of
            the step.
        engine: the data-parallel engine, as for :class:`Strategy`.
        shows_code: whether the text of the result ends with the code of the layout.

    Raises:
        TargetError: if the target is invalid, or cannot be built.
        InputsError: if sizes do not divide evenly, or the model does not support the layout or does
            not run.
    """
    axes = mesh_axes(mesh) if isinstance(mesh, Mapping) else parse_mesh(mesh, gpus)
    if gpus not in (None, axes.num_ranks):
        raise InputsError(f"the mesh has {axes.num_ranks} ranks, and gpus is {gpus}: give one")
    is_pipeline = axes.pipeline_ranks > 1
    micro_batch, accumulate = micro_batches(batch, micro_batch, accumulate, axes)
    sizes = batch_of(batch, micro_batch, accumulate, axes.data_ranks)
    strategy = Strategy(
        axes.sizes,
        checkpoint,
        precision,
        zero,
        offload,
        sequence_parallel=sequence_parallel,
        schedule=schedule,
        microbatches=sizes.accumulate if is_pipeline else None,
        engine=engine,
    )
    target, dtype = resolve(text, overrides=overrides), _DTYPES[precision]
    module = build(replace(target, dtype=dtype)).module
    code = strategy.code(module)
    num_at_once = sizes.micro * (sizes.accumulate if is_pipeline else 1)
    given, seq = _inputs(module, inputs, num_at_once, seq)
    given, goal = _split_inputs(given, module, axes), None
    num_run = sizes.accumulate if is_pipeline else min(sizes.accumulate, _MOST_RUN)
    if is_pipeline:
        given, goal = inputs_and_target(given, num_at_once)
    try:
        found = plan(
            partial(construct, target, dtype),
            **strategy.plan_options,
            inputs=given,
            optimizer=_optimizer(strategy, optimizer),
            target=goal,
            accumulate=1 if is_pipeline else num_run,
            gpu=gpu,
            answer=answer,
            allocator=allocator,
        )
    except UnknownValueError as error:
        if answer is not None:
            raise
        raise UnknownValueError(f"{error}, on the command line --answer typical") from error
    timed = found.schedule
    return TargetPlan(
        target=text,
        strategy=strategy,
        batch=sizes,
        seq=seq,
        optimizer=optimizer,
        plan=_of_all_micro_batches(found, num_run, sizes.accumulate),
        code=code,
        time=None
        if timed is None
        else step_time(timed, found.model_flops, num_run, sizes.accumulate),
        notes=target.notes + _notes(sizes, num_run) + _assumed(axes),
        shows_code=shows_code,
    )


def _inputs(
    module: nn.Module, maker: str | Sequence[str] | None, micro: int, seq: int | None
) -> tuple[Any, int | None]:
    """The arguments of the forward pass of a rank, or a function that makes them; and how long its
    sequences are.
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
    """Inputs as ``plan`` takes them: named ones as the mapping itself."""
    return inputs[0] if len(inputs) == 1 else inputs


def _split_inputs(given: Any, module: nn.Module, axes: MeshAxes) -> Any:
    """The inputs whose sequences are split along the axis, if there is one."""
    if axes.context_ranks == 1 or not is_of_transformers(module) or callable(given):
        return given
    if "input_ids" not in given:
        names = ", ".join(given)
        raise InputsError(f"{axes.context} splits sequences of tokens: {names} are none")
    length = given["input_ids"].shape[1]
    check_length(length, axes.context_ranks, axes.context)
    return whole_sequences(given)


def _optimizer(strategy: Strategy, name: str) -> Any:
    """The optimizer of that name as the layout needs it; the name, if that is as torch has it."""
    return strategy.optimizer(name) if strategy.mixes_dtensors or strategy.stage == 1 else name


def _of_all_micro_batches(found: Plan, num_run: int, num_all: int) -> Plan:
    """The plan with the messages of all micro-batches, of which some were run."""
    if num_run == num_all:
        return found

    def times(number: int) -> int:
        return number * num_all // num_run

    def of_all(row: Any) -> Any:
        if row.phase == "optimizer":
            return row
        sums = (row.num_calls, row.num_bytes, row.sent_bytes)
        return row._replace(
            **dict(zip(("num_calls", "num_bytes", "sent_bytes"), map(times, sums), strict=True))
        )

    by_ranks = tuple(
        replace(ranks, traffic=tuple(map(of_all, ranks.traffic))) for ranks in found.by_ranks
    )
    return replace(found, by_ranks=by_ranks)


def _assumed(axes: MeshAxes) -> tuple[str, ...]:
    notes = []
    if axes.context_ranks > 1:
        notes.append(
            "causal ring attention computes about half of the FLOPs that the attention formula "
            "counts on one GPU; MFU is lower accordingly"
        )
    if axes.expert_ranks > 1:
        notes.append(
            "assumed: every expert gets the same number of tokens (the router's choice is unknown)"
        )
    return tuple(notes)


def _notes(sizes: Batch, num_run: int) -> tuple[str, ...]:
    if num_run == sizes.accumulate:
        return ()
    return (f"{num_run} of {sizes.accumulate} micro-batches were run; the others count alike",)
