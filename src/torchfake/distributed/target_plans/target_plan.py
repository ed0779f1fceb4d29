"""The public function ``plan_target``: a plan of training a TARGET on given GPUs in a layout.

Input: a TARGET, numbers of GPUs, tokens and samples, and names of options. Output: a
:class:`TargetPlan`, plain data. Invariant: the numbers are those of ``plan`` for the code in the
record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from torchfake._core import gpu_profiles
from torchfake._core.arguments import is_number_above_0
from torchfake._core.gpu_profiles import DEFAULT_PROFILE, CudaProfile
from torchfake.distributed.parallelize.mesh_axes import axes_of
from torchfake.distributed.plan import Plan, plan
from torchfake.distributed.step_time import StepTime
from torchfake.distributed.strategy import Strategy
from torchfake.distributed.target_plans.adapted import (
    adapted,
    check_axes,
    notes_on,
    precision_for,
)
from torchfake.distributed.target_plans.batch import Batch, batch_of, micro_batches
from torchfake.distributed.target_plans.inputs import (
    inputs_and_target,
    inputs_of,
    run_explained,
    split_inputs,
    written_batch,
)
from torchfake.distributed.target_plans.notes import (
    of_experts,
    of_micro_batches,
    of_target,
    of_written,
    padding_of,
)
from torchfake.distributed.target_plans.remedies import with_remedy
from torchfake.errors import InputsError
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.records.record import Record
from torchfake.inspect.steps.step import NO_OPTIMIZER
from torchfake.inspect.targets.build import build, construct
from torchfake.inspect.targets.resolve import resolve
from torchfake.inspect.timing.collectives import Links
from torchfake.inspect.timing.hardware import hardware_of

_DTYPES = {"mixed": torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16}
_MOST_RUN = 2
"""The most micro-batches of a step that are run: all later ones find gradients as the second."""


@dataclass(frozen=True, repr=False)
class TargetPlan(Record):
    """A plan of a TARGET: the assumptions, the results, and the code of the layout."""

    target: str  # as given by the user
    strategy: Strategy
    batch: Batch
    seq: int | None  # tokens of a sequence, if the inputs have any
    optimizer: str
    plan: Plan
    code: str  # the code of the layout, to paste
    notes: tuple[str, ...] = ()
    remedy: str = ""  # options with which a plan that does not fit does, if they were looked for
    remedy_cpu_bytes: int = 0  # CPU memory that each rank then needs
    remedy_headroom_bytes: int | None = None  # memory then left on each GPU, if that is tight
    shows_code: bool = False  # whether the record's text ends with the code
    lora: int | None = None  # the rank of the adapters
    weights: str | None = None  # the scheme of quantized weights

    @property
    def shown_code(self) -> str:
        """The code that ends the record's text: none unless it was asked for."""
        return self.code.rstrip() if self.shows_code else ""

    @property
    def fits(self) -> bool:
        """Whether the peak reserved memory fits on the GPU."""
        return bool(self.plan.fits)

    @property
    def verdict(self) -> str:
        """``"yes"``, ``"no"``, or ``"tight"`` if it fits with little of the memory left."""
        return "no" if self.plan.fit is None else self.plan.fit.verdict

    @property
    def estimate(self) -> Estimate:
        """The step of the ranks with the highest peak."""
        return self.plan.estimate

    @property
    def class_name(self) -> str:
        """The class of the model."""
        return self.plan.class_name

    @property
    def time(self) -> StepTime | None:
        """The time of a step: all micro-batches and the optimizer; see :attr:`Plan.time`."""
        return self.plan.time

    @property
    def step_seconds(self) -> float | None:
        """The seconds of `time`; None if that is not known: see :attr:`Plan.step_seconds`."""
        return self.plan.step_seconds

    @property
    def samples_per_second_of_all_gpus(self) -> float | None:
        """Samples per second, on all GPUs together."""
        return self.batch.size / self.step_seconds if self.step_seconds else None

    @property
    def tokens_per_second_per_gpu(self) -> float | None:
        """Tokens per second, on each GPU; None if the inputs are no sequences of tokens."""
        samples, num_ranks = self.samples_per_second_of_all_gpus, self.plan.layout.num_ranks
        return None if samples is None or self.seq is None else samples * self.seq / num_ranks

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, see :attr:`Plan.mfu`."""
        return self.plan.mfu

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict for JSON."""
        remedied: dict[str, Any] = {
            "remedy": self.remedy or None,
            "remedy_cpu_bytes": self.remedy_cpu_bytes or None,
            "remedy_headroom_bytes": self.remedy_headroom_bytes,
        }
        return {
            "target": self.target,
            "fits": self.fits,
            "verdict": self.verdict,
            "step_seconds": self.step_seconds,
            "step_seconds_at_least": self.plan.step_seconds_at_least,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "samples_per_second_of_all_gpus": self.samples_per_second_of_all_gpus,
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
            **{k: v for k, v in remedied.items() if v is not None},
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
    precision: str | None = None,
    optimizer: str = "adamw",
    zero: int | None = None,
    offload: bool = False,
    overrides: Sequence[str] = (),
    inputs: str | Sequence[str] | None = None,
    answer: str | None = None,
    allocator: str | None = None,
    network: float | None = None,
    sequence_parallel: bool = False,
    schedule: str | None = None,
    engine: str = "fsdp2",
    weights: str | None = None,
    lora: int | None = None,
    lora_target: Sequence[str] = (),
    shows_code: bool = False,
    suggests: bool = True,
) -> TargetPlan:
    """Plan the training of the model that a TARGET names, with a layout derived from the model.

    Args:
        text: a TARGET, see :func:`torchfake.inspect.resolve`.
        gpus: the number of GPUs, by default the size of `mesh`.
        mesh: the sizes of the axes, such as ``"dp=4,tp=2"``, as for :class:`Strategy`; by default
            all GPUs are along ``dp``.
        gpu: the GPU type.
        seq: the sequence length in tokens; by default as in :func:`torchfake.example_inputs`.
        batch: the global batch size of a step.
        micro_batch: the batch size of one forward pass on a data-parallel rank.
        accumulate: the number of micro-batches in a step.
        checkpoint: activation checkpointing, as for :class:`Strategy`.
        precision: as for :class:`Strategy`, by default ``"mixed"``; parameters are float32 in
            ``"mixed"`` and ``"fp32"``, whatever the dtype in the config. With `lora` the default is
            ``"bf16"``, which quantized weights need.
        optimizer: the name of an optimizer in ``torch.optim``, or ``"none"``.
        zero: 3 or 2, with ``engine="ddp"`` 0 or 1, as for :class:`Strategy`.
        offload: keep shards in CPU memory.
        overrides: changes of the config or arguments, each as ``key=value``.
        inputs: ``package.module:function`` or ``path/to/file.py:function``, which returns the
            arguments of the forward pass and takes ``batch`` and, if given, ``seq``; not needed for
            transformers models. Or a list of inputs as text, such as ``["8,64"]`` or
            ``["ids=int64[8,64]"]``, whose first size is the batch of a data rank; it is replaced
            if `batch` or `micro_batch` is given.
        answer: supplies unknown values: ``"typical"``.
        allocator: options of CUDA's caching allocator.
        network: the bandwidth between nodes in Gb/s for each GPU, by default 400.
        sequence_parallel: also split the sequence along ``tp``, as for :class:`Strategy`.
        schedule: the pipeline schedule, as for :class:`Strategy`; its micro-batches are those of
            the step.
        engine: the data-parallel engine, as for :class:`Strategy`.
        weights: the scheme by which the weights are quantized, as for :func:`torchfake.estimate`:
            with `lora`, QLoRA.
        lora: the rank of LoRA adapters, which are trained in place of the weights.
        lora_target: the ends of the names of layers that have adapters; by default all linear ones.
        shows_code: whether the text of the result ends with the code of the layout.
        suggests: whether to look for options with which a plan that does not fit does.

    Raises:
        TargetError: if the target is invalid, or cannot be built.
        InputsError: if sizes do not divide evenly, or the model does not support the layout or does
            not run.
    """
    options: dict[str, Any] = {name: value for name, value in locals().items() if name != "text"}
    axes = axes_of(mesh, gpus)
    precision = precision_for(precision, weights, lora)
    check_axes(axes, weights, lora)
    is_pipeline = axes.pipeline_ranks > 1
    written = written_batch(inputs)
    if batch is None and micro_batch is None and not is_pipeline:
        micro_batch = written  # as in the other commands, which run the inputs as they are
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
    dtype = _DTYPES[precision]
    named = resolve(text, overrides=overrides)
    target = adapted(replace(named, dtype=dtype), weights, lora, tuple(lora_target))
    module = build(target).module
    code = strategy.code(module)
    padding = padding_of(module, strategy)
    num_at_once = sizes.micro * (sizes.accumulate if is_pipeline else 1)
    given, seq = inputs_of(module, inputs, num_at_once, seq)
    given, goal = split_inputs(given, module, axes), None
    num_run = sizes.accumulate if is_pipeline else min(sizes.accumulate, _MOST_RUN)
    if is_pipeline:
        given, goal = inputs_and_target(given, num_at_once)
    with run_explained(module, seq, answer):
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
            links=_links(gpu, network),
        )
    planned = TargetPlan(
        target=text,
        strategy=strategy,
        batch=sizes,
        seq=seq,
        optimizer=optimizer,
        plan=_of_all_micro_batches(found, num_run, sizes.accumulate),
        code=code,
        notes=of_target(named, weights)
        + notes_on(weights, lora)
        + of_written(written, sizes)
        + of_micro_batches(sizes, num_run)
        + of_experts(axes)
        + padding.notes,
        shows_code=shows_code,
        lora=lora,
        weights=weights,
    )
    if not suggests:
        return planned

    def plan_with(**changes: Any) -> TargetPlan:
        return plan_target(text, **{**options, **changes, "suggests": False})

    found_with_remedy: TargetPlan = with_remedy(planned, plan_with, padding.remedies)
    return found_with_remedy


def _links(gpu: str | CudaProfile, network: float | None) -> Links | None:
    """The links between ranks if a bandwidth between nodes is given; None: the usual ones."""
    if network is None:
        return None
    if not is_number_above_0(network):
        raise InputsError(f"network={network!r} is not a number of Gb/s above 0")
    hardware = hardware_of(gpu_profiles.profile(gpu))
    return None if hardware is None else Links(hardware.link_bytes, network * 1e9 / 8)


def _optimizer(strategy: Strategy, name: str) -> Any:
    """The optimizer of that name, adapted to the layout; the name itself if no change is needed."""
    if name == NO_OPTIMIZER:
        return name
    return strategy.optimizer(name) if strategy.mixes_dtensors or strategy.stage == 1 else name


def _of_all_micro_batches(found: Plan, num_run: int, num_all: int) -> Plan:
    """The plan with the messages and the time of all micro-batches, extrapolated from those that
    were run.
    """
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
    return replace(found, by_ranks=by_ranks, num_run=num_run, num_all=num_all)
