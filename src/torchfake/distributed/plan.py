"""The public function ``plan``: the memory and communication of every rank of a distributed step.

Input: how a model is built, parallelized and trained, and the shape of a mesh. Output: a
:class:`Plan`, plain data. Invariant: the numbers of a rank come from a run as that rank, or as a
rank whose shards all have the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torchfake._core import gpu_profiles
from torchfake._core.arguments import is_whole_number
from torchfake._core.gpu_profiles import CudaProfile
from torchfake.distributed.joint_schedules import timed_together
from torchfake.distributed.layout import Layout, layout_of
from torchfake.distributed.plan_record import Plan as Plan
from torchfake.distributed.ranks.fake_process_group import check_no_process_group
from torchfake.distributed.ranks.run_rank import Job
from torchfake.distributed.ranks.run_ranks import requested, run_all, run_each
from torchfake.errors import DeviceError, InputsError
from torchfake.fake import parse_known_device
from torchfake.inspect.copies.workload import Workload
from torchfake.inspect.memory.fit import RESERVED_BYTES
from torchfake.inspect.steps.step import Loss, step_of
from torchfake.inspect.timing.collectives import Links
from torchfake.observe import Answerer, AnswerFunction


def plan(
    module_fn: Callable[[], nn.Module],
    *others: Any,
    mesh_shape: tuple[int, ...] | int | None = None,
    parallelize: Callable[[nn.Module, Any], Any] | None = None,
    inputs: Any = None,
    optimizer: Any = None,
    loss: Loss | None = None,
    mode: str = "training",
    autocast: torch.dtype | str | bool | None = None,
    accumulate: int = 1,
    keep_gradients: bool = False,
    mesh_dim_names: tuple[str, ...] | str | None = None,
    gpu: str | CudaProfile | None = None,
    device: torch.device | str | None = None,
    ranks: Iterable[int] | None = None,
    reserved_bytes: int = RESERVED_BYTES,
    round_to: int | None = None,
    workspace_bytes: int | None = None,
    allocator: str | None = None,
    answer: str | AnswerFunction | None = None,
    links: Links | None = None,
    context: Callable[[Any, Any], Any] | None = None,
    unlike_axes: Iterable[str] = (),
    routing: str | None = None,
    target: Any = None,
    **unknown: Any,
) -> Plan:
    """Plan the memory and communication of a step on every rank of a mesh, without the devices.

    The step runs on fakes in this process, as one rank of torch's fake process group, which sends
    nothing. Ranks whose shards have the same sizes do the same work, so one of them is run for all
    of them; for programs that depend on the rank, `ranks` selects the ranks to run.

    Args:
        module_fn: builds the model, as for :func:`torchfake.deferred_init`; it is called under
            ``torch.device(device)``.
        mesh_shape: the size of each axis of the mesh, such as ``(64, 8)``.
        parallelize: a function of the model and the ``DeviceMesh`` that shards the model. It
            returns the model, or None if it changes the model in place. It may use FSDP2, tensor
            parallelism, ``distribute_module`` and activation checkpointing. For a pipeline it
            returns a schedule of ``torch.distributed.pipelining``, whose ``step`` performs the
            forward and backward passes. By default every rank has the whole model.
        inputs: the inputs of one rank: a tensor, a tuple, a mapping of arguments by name, or a
            function without arguments that returns one of these. For a pipeline, the inputs of all
            its micro-batches: positional ones go to the first stage, named ones to every stage.
        optimizer: as for :func:`torchfake.estimate`, except that it cannot be an optimizer of the
            module's parameters, which do not exist yet.
        loss: a function of the output; by default ``output.loss``, or if there is none, the sum of
            the first output tensor that requires gradients.
        mode: ``"training"`` (forward, backward, and the optimizer if given), ``"forward"`` or
            ``"inference"``.
        autocast: the dtype of ``torch.autocast`` around the forward pass; True selects the device's
            default.
        accumulate: the number of micro-batches in a step, as for :func:`torchfake.estimate`;
            gradients are reduced in each of them, unless `parallelize` disables this.
        keep_gradients: set gradients to zero between steps instead of freeing them.
        mesh_dim_names: the names of the mesh axes; by default ``("dp",)``, ``("dp", "tp")`` or
            ``("pp", "dp", "tp")``.
        gpu: the profile of each rank's GPU or its name, see :func:`torchfake.profiles`.
        device: ``"cuda"`` by default, or ``"cpu"`` for ranks without a GPU.
        ranks: the ranks to run; no other ranks are included in the plan.
        reserved_bytes: memory of the GPU that the caching allocator cannot use; by default 512 MiB
            for the CUDA context and 512 MiB as a margin.
        round_to: round allocations up to a multiple of this; by default 512 on CUDA, otherwise 1.
        workspace_bytes: the size of the cuBLAS workspaces; by default what the installed torch
            allocates on that GPU.
        allocator: options of CUDA's caching allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``, such as
            ``"expandable_segments:True"``; for ``peak_reserved_bytes``.
        answer: supplies unknown values: ``"typical"`` or a function, as for
            :func:`torchfake.fake_mode`. ``answers`` of each rank's estimate lists them.
        links: the links between ranks, which determine the time of collectives; by default as in
            NVIDIA's DGX H100: nodes of 8, the GPU's own links inside a node, and 400 Gb/s per GPU
            between nodes.
        context: a function of the mesh and the inputs (a mapping or a tuple) that returns a context
            manager, in which the forward and backward pass of each micro-batch run. Context
            parallelism needs one, which splits the inputs in place.
        unlike_axes: the names of axes along which ranks run different code; each such rank is run.
            Ranks with shards of different sizes are detected automatically.
        routing: ``"balanced"``: where ranks exchange numbers of tokens per expert, assume that all
            experts receive the same number. By default these numbers are unknown values.
        target: the target of a pipeline's loss, as in ``schedule.step(target=...)``: a tensor, or a
            function without arguments that returns it.
        *others: refused, with the call that is meant.
        **unknown: refused likewise.

    Returns:
        The plan. Bytes are those of a single rank; see :class:`Plan`.

    Raises:
        TypeError: if `mesh_shape` is missing, or an argument is none of these.
        InputsError: if the arguments are incompatible, a process group is already initialized, or
            one of the functions fails; the message names it and the rank.
        DeviceError: if the device or profile does not exist.
        MissingExtraError: if torch was built without torch.distributed.

    >>> from torch.distributed.fsdp import fully_shard
    >>> found = plan(
    ...     lambda: nn.Linear(1024, 1024, bias=False),
    ...     mesh_shape=8,
    ...     parallelize=lambda module, mesh: fully_shard(module, mesh=mesh),
    ...     inputs=lambda: torch.empty(16, 1024),
    ...     optimizer="adamw",
    ...     device="cpu",
    ... )
    >>> found.of_rank(3).parameter_bytes, found.of_rank(3).optimizer_bytes
    (524288, 1048580)
    >>> [(row.collective, row.axis, row.num_bytes) for row in found.traffic][0]
    ('all_gather', 'dp', 4194304)
    """
    if others or unknown or mesh_shape is None:
        raise TypeError(_wrong_call(module_fn, others, unknown, gpu))
    check_no_process_group()
    Answerer(answer)  # refuses an invalid `answer`
    if links is not None and not isinstance(links, Links):
        raise InputsError(f"links={links!r:.40}: give torchfake.distributed.Links")
    layout = layout_of(mesh_shape, mesh_dim_names)
    _check_functions(module_fn, parallelize, context, reserved_bytes)
    _check_inputs(inputs)
    on = _device(device, gpu)
    profile = None if gpu is None else gpu_profiles.profile(gpu)
    empty = Workload(nn.Module(), device=on, gpu=profile)
    step = step_of(
        empty,
        mode=mode,
        optimizer=optimizer,
        loss=loss,
        autocast=autocast,
        accumulate=accumulate,
        keep_gradients=keep_gradients,
        round_to=round_to,
        workspace_bytes=workspace_bytes,
        allocator=allocator,
    )
    unlike = _unlike_axes(layout, unlike_axes)
    if routing not in (None, "balanced"):
        raise InputsError(f"routing={routing!r}: give 'balanced', or leave it out")
    run = module_fn, parallelize, inputs, step, layout, on, profile, answer
    job = Job(*run, context, unlike, routing, target=target)
    if ranks is not None:
        job = replace(job, ranks=requested(ranks, layout))
    return plan_of(job, reserved_bytes, links)


def plan_of(job: Job, reserved_bytes: int = RESERVED_BYTES, links: Links | None = None) -> Plan:
    """Run a job, and return its plan: of all ranks, or of the ranks that the job names."""
    plans = run_all(job) if job.ranks is None else run_each(job, job.ranks)
    plans = timed_together(plans, job.layout, links)
    first = plans[0].estimate
    return Plan(
        first.class_name,
        job.step.mode,
        job.layout,
        first.device,
        first.gpu,
        reserved_bytes,
        tuple(plans),
        links,
        job,
    )


def _wrong_call(
    module_fn: Any, others: tuple[Any, ...], unknown: Mapping[str, Any], gpu: Any
) -> str:
    """What is wrong with a call that Python itself would refuse, and how to write it."""
    on = "..." if gpu is None else repr(gpu)
    if isinstance(module_fn, str):
        given = "".join(f", {name}={value!r}" for name, value in unknown.items())
        return (
            "plan takes a function that builds the model; of a name, give "
            f"torchfake.distributed.plan_target({module_fn!r}{given or ', gpus=8'}, gpu={on})"
        )
    if others:
        wrong = f"takes one argument without a name, not {1 + len(others)}"
    elif unknown:
        wrong = f"has no {next(iter(unknown))}="
    else:
        wrong = "needs mesh_shape=, the sizes of the mesh"
    number = unknown.get("gpus", 8)
    size = number if is_whole_number(number, 1) else 8
    return (
        f"plan {wrong}: give plan(lambda: Model(), mesh_shape={size}, "
        f"inputs=torchfake.example_inputs(model, batch=..., seq=...), gpu={on})"
    )


def _check_functions(module_fn: Any, parallelize: Any, context: Any, reserved_bytes: Any) -> None:
    if isinstance(module_fn, nn.Module) or not callable(module_fn):
        raise InputsError(
            f"module_fn is a {type(module_fn).__name__}: give a function that builds the model, "
            "such as lambda: Model(config)"
        )
    if parallelize is not None and not callable(parallelize):
        raise InputsError(f"parallelize={parallelize!r} is not a function of a module and a mesh")
    if context is not None and not callable(context):
        raise InputsError(f"context={context!r} is not a function of a mesh and inputs")
    if not is_whole_number(reserved_bytes, 0):
        raise InputsError(f"reserved_bytes={reserved_bytes!r} is not a number of bytes")


def _unlike_axes(layout: Layout, given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)):
        raise InputsError(f"unlike_axes={given!r}: give names of axes, such as ('cp',)")
    for name in names:
        if name not in layout.axes:
            raise InputsError(f"unlike_axes has {name!r}: the axes are {', '.join(layout.axes)}")
    return tuple(names)


def _check_inputs(inputs: Any) -> None:
    is_container = isinstance(inputs, (torch.Tensor, tuple, list, Mapping))
    if inputs is not None and not is_container and not callable(inputs):
        raise InputsError(
            f"inputs is of type {type(inputs).__name__}: give a tensor, a tuple, a mapping of "
            "arguments by name, or a function that returns one of these"
        )


def _device(device: torch.device | str | None, gpu: str | CudaProfile | None) -> torch.device:
    try:
        on = parse_known_device("cuda" if device is None else device)
    except RuntimeError as error:
        raise DeviceError(f"there is no device {device!r}; give cpu or cuda") from error
    if on.index:
        raise DeviceError(f"device={device!r}: each rank has one GPU of its own; give cuda")
    if on.type != "cuda" and gpu is not None:
        raise DeviceError(f"gpu={gpu!r} and device={device!r}: give one of them")
    return on
