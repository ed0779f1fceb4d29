"""Runs the step of one rank on fakes.

Input: a :class:`Job`, which says how a model is built, parallelized and trained; and a rank.
Output: a :class:`RankRun`: the estimate of its step, its traffic, and its uneven shards. Invariant:
the step runs like ``estimate`` of an unsharded model; the state of torch and torch.distributed is
restored afterwards, whatever happens.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from torchfake._core.gpu_profiles import AlikeGpus, CudaProfile
from torchfake._progress import count
from torchfake._torch.distributed.dtensors import process_group_of
from torchfake.distributed.ddp.reducer import held_by_reducers
from torchfake.distributed.ddp.replacements import patches_of_ddp
from torchfake.distributed.layout import Layout
from torchfake.distributed.ranks.fake_process_group import simulated_rank
from torchfake.distributed.ranks.mailboxes import Mailbox
from torchfake.distributed.ranks.pipeline_loop import (
    Pipeline,
    PipelineLoop,
    check_pipeline_step,
    pipeline_of,
)
from torchfake.distributed.ranks.point_to_point import patches_of_messages
from torchfake.distributed.ranks.rank_tracker import RankTracker, Traffic
from torchfake.distributed.ranks.shard_sizes import ObservedOptimizer, UnevenShards
from torchfake.errors import InputsError, TorchFakeError
from torchfake.fake import parameters_and_buffers
from torchfake.inspect.copies.arguments import ArgumentCopies
from torchfake.inspect.copies.workload import FakeCopy, Workload
from torchfake.inspect.memory.estimate import account
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.memory.small_heap import small_heap
from torchfake.inspect.records.messages import assumed_text, one_line
from torchfake.inspect.serving.cache_record import ServedCache
from torchfake.inspect.serving.passes import run_serving
from torchfake.inspect.steps.execution import run_step, set_training
from torchfake.inspect.steps.step import Step
from torchfake.inspect.storages.lifetimes import Lifetimes
from torchfake.inspect.timing.commands import recorder_for
from torchfake.observe import (
    Answerer,
    AnswerFunction,
    FakeCopies,
    FakeTensor,
    Patched,
    RunningModules,
    interrupt_behind,
    leaf_tensors,
    patches_of_dtensors,
)


@dataclass(frozen=True)
class Job:
    """The arguments of ``plan``: the model, and the step that every rank runs."""

    module_fn: Callable[[], nn.Module]
    parallelize: Callable[[nn.Module, Any], Any] | None
    inputs: Any  # the arguments of a rank's forward pass, or a function that creates them
    step: Step
    layout: Layout
    device: torch.device
    gpu: CudaProfile | None  # the profile of the device; None: torchfake's default
    answer: str | AnswerFunction | None = None  # supplies unknown values
    context: Callable[[Any, Any], Any] | None = None  # makes the context of a micro-batch
    unlike_axes: tuple[str, ...] = ()  # axes along which ranks run different code
    routing: str | None = None  # "balanced": experts get equally many tokens
    ranks: tuple[int, ...] | None = None  # the ranks to run; None: one of each kind
    is_timed: bool = True  # whether commands on streams are recorded
    alike: AlikeGpus | None = None  # GPUs that the ranks may stand for: see Workload
    target: Any = None  # of a pipeline's loss: a tensor, or a function that creates it
    look: Callable[[nn.Module], Any] | None = None  # is called with the module of each rank

    @property
    def workload(self) -> Workload:
        """The device and its profile, for the mode that a rank runs in."""
        return Workload(
            nn.Module(),
            device=self.device,
            gpu=self.gpu,
            alike=self.alike,
            answer=self.answer,
            is_balanced=self.routing == "balanced",
        )


class RankRun(NamedTuple):
    """The result of running one rank."""

    rank: int
    estimate: Estimate
    traffic: tuple[Traffic, ...]
    shape_ids: dict[
        Any, np.ndarray[Any, Any]
    ]  # the shapes of uneven shards on all ranks; see distributed/ranks/shard_sizes
    seen: Any = None  # what the job's `look` has returned


def run_rank(job: Job, rank: int, mailbox: Mailbox) -> RankRun:
    """Build and parallelize the model as `rank` would, and run its step.

    Args:
        job: the model and the step.
        rank: the number of the rank.
        mailbox: the point-to-point messages of the rank.

    Raises:
        InputsError: if a function of the job fails; the message names it and the rank.
        WaitsForRank: if the rank needs a message of a rank that has not been run yet.
    """
    answerer, ranks = Answerer(job.answer), job.layout.num_ranks
    count(f"rank {rank} of {job.layout.text}")
    with small_heap(), simulated_rank(rank, ranks), job.workload.mode(answerer), _patched():
        return _Rank(job, rank, answerer, mailbox).run()


def _patched() -> Patched:
    """Context in which DTensors of fakes and DDP run, and point-to-point messages are observed."""
    importlib.import_module("torch.distributed.tensor")
    return Patched([*patches_of_dtensors(), *patches_of_messages(), *patches_of_ddp()])


class _Rank:
    """A rank that is being run."""

    def __init__(self, job: Job, rank: int, answerer: Answerer, mailbox: Mailbox) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.job, self.rank, self.answerer = job, rank, answerer
        self.mailbox = mailbox
        self.cache: ServedCache | None = None  # of all users, if the job is to serve
        self.pipeline: Pipeline | None = None  # the pipeline, if `parallelize` returns a schedule
        with self._errors_named("the mesh"):
            self.mesh = init_device_mesh(
                job.device.type, job.layout.shape, mesh_dim_names=job.layout.axes
            )
        self._axes: dict[str, tuple[str, int]] = {}  # by the name of a process group
        for axis, size in zip(job.layout.axes, job.layout.shape, strict=True):
            self._axes[self.mesh.get_group(axis).group_name] = axis, size

    def run(self) -> RankRun:
        module = self._build()
        class_name = type(module).__name__
        module = self._parallelize(module)
        args, kwargs = self._inputs()
        uneven = UnevenShards(self.job.layout)
        uneven.register(module.parameters())
        uneven.register(module.buffers())
        modules, step = RunningModules(module), self._step(args, kwargs)
        if callable(step.optimizer) and not isinstance(step.optimizer, type):
            step = replace(step, optimizer=ObservedOptimizer(step.optimizer, uneven))
        make = partial(
            RankTracker, modules, uneven, self._axis_of, self.mailbox,
            has_workspace=step.workspace_bytes is not None,
            held=partial(held_by_reducers, module),
        )  # fmt: skip
        tracker = make(recorder_for(self.job.device) if self.job.is_timed else None)
        is_another = self.pipeline is not None or step.keep_gradients
        is_replica = step.mode == "training" and bool(held_by_reducers(module))
        first = make() if is_another or is_replica else None  # DDP rebuilds buckets after it
        if self.pipeline is None and self.job.target is not None:
            raise InputsError(
                "target= is for a pipeline, and parallelize returned none: leave it out"
            )
        fake_copy = FakeCopy(module, args, kwargs, self.job.workload, {}, self.answerer)
        with self._errors_named("the step", modules):
            first_lives = self._run_step(step, fake_copy, tracker, first)
        seen = None if self.job.look is None else self.job.look(module)
        ran = self.job.workload.of_unkept(module, args, kwargs)
        return self._result(class_name, ran, tracker, first_lives)._replace(seen=seen)

    def _run_step(
        self, step: Step, fake_copy: FakeCopy, tracker: RankTracker, first: RankTracker | None
    ) -> Lifetimes | None:
        """Run the step; returns the lifetimes of the first step, if later steps differ."""
        if step.serve is not None:
            self.cache = run_serving(step, fake_copy, tracker)
            return None
        if self.pipeline is None or first is None:
            run_step(step, fake_copy, tracker, first)
            return None if first is None else first.finish()
        set_training(fake_copy.module, step.mode)
        loop = PipelineLoop(step, fake_copy, self.pipeline, self._target())
        loop.run(first)
        first_lives = first.finish()
        loop.run(tracker, first)
        return first_lives

    def _build(self) -> nn.Module:
        with self._errors_named("module_fn"), self.job.device:
            module = self.job.module_fn()
        if not isinstance(module, nn.Module):
            raise InputsError(f"module_fn gave {module!r:.40}, not a torch.nn.Module")
        if _has_real_tensors(module):
            raise InputsError(
                "module_fn returned a module that has real tensors: build it in module_fn, where "
                "they are fake"
            )
        return module

    def _parallelize(self, module: nn.Module) -> nn.Module:
        if self.job.parallelize is None:
            return module.to(self.job.device)
        with self._errors_named("parallelize"):
            given = self.job.parallelize(module, self.mesh) or module
        self.pipeline = pipeline_of(given)
        if self.pipeline is not None:
            check_pipeline_step(given, self.job.step)
            module = self.pipeline.module
        elif not isinstance(given, nn.Module):
            raise InputsError(
                f"parallelize gave {given!r:.40}: it returns the module, the schedule of a "
                "pipeline, or None"
            )
        else:
            module = given
        if _has_real_tensors(module):
            raise InputsError(
                "parallelize returned a module that has real tensors: leave out what materializes "
                "it (materialize_module), as a plan needs fakes"
            )
        if any(tensor.is_meta for tensor in _local_tensors_of(module)):
            module = module.to_empty(device=self.job.device)
        return module

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the forward pass, as fakes."""
        inputs = self._as_fakes(self.job.inputs, "inputs")
        if inputs is None:
            return (), {}
        if isinstance(inputs, Mapping):
            return (), dict(inputs)
        return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}

    def _target(self) -> Any:
        """The target of a pipeline's loss, as fakes."""
        return self._as_fakes(self.job.target, "target")

    def _as_fakes(self, inputs: Any, name: str) -> Any:
        """The given inputs, or the result if they are a function, with fakes for tensors."""
        is_function = callable(inputs) and not isinstance(inputs, (torch.Tensor, Mapping))
        if is_function:
            with self._errors_named(name), self.job.device:
                inputs = inputs()
        copies = self._copies(lambda fake: is_function)
        if isinstance(inputs, Mapping):
            return {key: copies.of(value) for key, value in inputs.items()}
        return copies.of(inputs)

    def _copies(self, is_there: Callable[[FakeTensor], bool]) -> ArgumentCopies:
        """Copies of tensors on the device of the rank; fakes that are there already stay."""

        def is_ready(tensor: torch.Tensor) -> bool:
            leaf = leaf_tensors(tensor)[0]
            return isinstance(leaf, FakeTensor) and is_there(leaf)

        return ArgumentCopies(FakeCopies(self.job.device, known=True), is_ready)

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
        """Create the step, in the job's context of a micro-batch if it has one."""
        copies = self._copies(lambda fake: fake.device.type == self.job.device.type)
        step = replace(self.job.step, loss=copies.of_function(self.job.step.loss))
        if self.job.context is None:
            return step
        return replace(step, around=partial(self.job.context, self.mesh, kwargs or args))

    def _axis_of(self, given: Any) -> tuple[str, int]:
        """The axis that a process group lies along, and the size of the group."""
        group = process_group_of(given)
        known = self._axes.get(group.group_name)
        if known is None:
            ranks = torch.distributed.get_process_group_ranks(group)
            known = self.job.layout.axis_along(ranks), len(ranks)
            self._axes[group.group_name] = known
        return known

    def _result(
        self, class_name: str, ran: Workload, tracker: RankTracker, first: Lifetimes | None
    ) -> RankRun:
        job, peers = self.job, self.mailbox.peers
        estimate = account(
            tracker.finish(),
            tracker.ops,
            first=first,
            class_name=class_name,
            device=job.device,
            workload=ran,
            step=job.step,
            answerer=self.answerer,
            commands=tracker.commands,
            loss=tracker.loss,
        )
        estimate = replace(estimate, cache=self.cache)
        shape_ids = {**tracker.uneven.shape_ids, **job.layout.differing(self.rank, peers)}
        return RankRun(self.rank, estimate, tracker.traffic, shape_ids)

    @contextlib.contextmanager
    def _errors_named(self, part: str, modules: RunningModules | None = None) -> Iterator[None]:
        """Context in which errors name the part that failed, and the rank."""
        try:
            yield
        except TorchFakeError:
            raise
        except Exception as error:
            if interrupt_behind(error) is not None:
                raise  # an interrupt caused the error; the mode raises the interrupt when left
            layout = self.job.layout
            failed = None if modules is None else modules.failure
            where = f" in {failed[1] or 'its own forward'}" if failed is not None else ""
            raise InputsError(
                f"{part} fails{where} on rank {self.rank} ({layout.text_of(self.rank)}) of the "
                f"mesh {layout.text}: {one_line(error)}{_remedy(error)}"
                + assumed_text([*self.answerer.answers])
            ) from error


def _remedy(error: Exception) -> str:
    """The advice on an error of torch that gives none."""
    text = str(error)
    if "nll_loss_backward" in text and "mixed torch.Tensor and DTensor" in text:
        return (
            ". The backward pass of loss_parallel() has to run in it too: leave it out of loss= "
            "and give context=lambda mesh, inputs: loss_parallel()"
        )
    return ""


def _has_real_tensors(module: nn.Module) -> bool:
    tensors = _local_tensors_of(module)
    return not all(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors)


def _local_tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """The parameters and buffers of a module, with shards in place of DTensors."""
    for tensor in parameters_and_buffers(module):
        yield from leaf_tensors(tensor)
