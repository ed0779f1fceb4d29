"""What every rank of a distributed step holds and sends, found without any of them.

Enters: how a model is built, parallelized and trained, and the shape of a mesh. Leaves: a
:class:`Plan`, plain data. Invariant: what is said of a rank was run as that rank, or as one that
holds shards of the same sizes throughout.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from torchfake import _cuda
from torchfake._cuda import CudaProfile
from torchfake.distributed.layout import Layout, layout_of
from torchfake.distributed.ledger import Traffic
from torchfake.distributed.rank import Job, RankRun, run_rank
from torchfake.distributed.rank_plan import KINDS, ORDER, RankPlan
from torchfake.distributed.shards import alike
from torchfake.distributed.world import check_free
from torchfake.errors import DeviceError, InputsError
from torchfake.fake import any_device
from torchfake.inspect.fit import RESERVED_BYTES, Fit
from torchfake.inspect.options import step_of
from torchfake.inspect.shown import Shown, data_frame
from torchfake.inspect.steps import Loss
from torchfake.inspect.subject import Subject


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """A step on every rank of a mesh."""

    class_name: str  # of the module, before it was parallelized
    mode: str  # "training", "forward" or "inference"
    layout: Layout  # the mesh: its shape and the names of its axes
    device: str
    gpu: CudaProfile | None  # what it is, if it is a CUDA device
    reserved_bytes: int  # of its memory, not for tensors
    by_ranks: tuple[RankPlan, ...]  # by the first of their ranks; each rank is in one

    @cached_property
    def highest(self) -> RankPlan:
        """What the ranks with the highest peak hold and send."""
        return max(self.by_ranks, key=lambda plan: plan.peak_bytes)

    @property
    def peak_rank(self) -> int:
        """The rank with the highest peak; of several, the first."""
        return self.highest.ranks[0]

    @property
    def peak_bytes(self) -> int:
        """The highest peak of any rank."""
        return self.highest.peak_bytes

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What the rank with the highest peak sends; those of other sizes send otherwise."""
        return self.highest.traffic

    def of_rank(self, rank: int) -> RankPlan:
        """What one rank holds and sends.

        Raises:
            InputsError: if the plan is not about that rank.
        """
        for found in self.by_ranks:
            if type(rank) is int and rank in found.ranks:
                return found
        raise InputsError(f"rank {rank!r} is none of the plan's")

    @cached_property
    def fit(self) -> Fit | None:
        """Whether the highest peak fits on the GPU; None on a CPU."""
        if self.gpu is None:
            return None
        nothing = None, None, None, None
        total = self.gpu.total_memory
        return Fit(self.gpu.name, total, self.reserved_bytes, self.peak_bytes, *nothing)

    @property
    def fits(self) -> bool | None:
        """The same in a word."""
        return None if self.fit is None else self.fit.fits

    def to_dict(self) -> dict[str, Any]:
        """What was found, ready for JSON."""
        return {
            "class_name": self.class_name,
            "mode": self.mode,
            "mesh": dict(zip(self.layout.axes, self.layout.shape, strict=True)),
            "device": self.device,
            "gpu": None if self.gpu is None else self.gpu.name,
            "peak_rank": self.peak_rank,
            "peak_bytes": self.peak_bytes,
            "fit": None if self.fit is None else self.fit.to_dict(),
            "by_ranks": [found.to_dict() for found in self.by_ranks],
        }

    def to_pandas(self) -> Any:
        """One row for each rank, as a pandas DataFrame.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        whose = {rank: found for found in self.by_ranks for rank in found.ranks}
        ranks = sorted(whose)
        places = self.layout.coordinates[ranks]
        return data_frame(
            {
                "rank": ranks,
                **{axis: places[:, i] for i, axis in enumerate(self.layout.axes)},
                **{name: [whose[r].most_bytes[name] for r in ranks] for name in _COLUMNS},
                "peak_bytes": [whose[r].peak_bytes for r in ranks],
                "sent_bytes": [whose[r].sent_bytes for r in ranks],
            }
        )


_COLUMNS = [KINDS[i] for i in ORDER]


def plan(
    module_fn: Callable[[], nn.Module],
    *,
    mesh_shape: tuple[int, ...] | int,
    parallelize: Callable[[nn.Module, Any], nn.Module | None] | None = None,
    inputs: Any = None,
    optimizer: Any = None,
    loss: Loss | None = None,
    mode: str = "training",
    autocast: torch.dtype | str | bool | None = None,
    mesh_dim_names: tuple[str, ...] | str | None = None,
    gpu: str | CudaProfile | None = None,
    device: torch.device | str | None = None,
    ranks: Iterable[int] | None = None,
    reserved_bytes: int = RESERVED_BYTES,
    round_to: int | None = None,
    workspace_bytes: int | None = None,
) -> Plan:
    """The memory and the communication of a step on every rank of a mesh; needs none of them.

    The step is run on fakes in this process, which takes itself for a rank by torch's fake process
    group, through which nothing is sent. Ranks that hold shards of the same sizes do the same, so
    one of them is run for all; `ranks` has others run, for programs that ask for their rank.

    Args:
        module_fn: builds the model, like that of :func:`torchfake.deferred_init`; it is run under
            ``torch.device(device)``.
        mesh_shape: the size of each axis of the mesh, such as ``(64, 8)``.
        parallelize: shards the model: is given it and the ``DeviceMesh``, and returns the module,
            or None if it is changed in place. FSDP2, tensor parallelism, ``distribute_module``,
            activation checkpointing: whatever a program does. Not given: each rank has all of it.
        inputs: what one rank is given: a tensor, a tuple, a mapping of arguments by name, or a
            function of nothing that makes one of these.
        optimizer: as :func:`torchfake.estimate` takes it, but for an optimizer of the module's
            parameters, which are not there yet.
        loss: a function of the output; not given: ``output.loss``, else the sum of the first tensor
            with a gradient.
        mode: ``"training"`` (forward, backward, and the optimizer if given), ``"forward"`` or
            ``"inference"``.
        autocast: the dtype of ``torch.autocast`` around the forward pass; True: the device's own.
        mesh_dim_names: of the axes; not given: ``("dp",)``, ``("dp", "tp")``,
            ``("pp", "dp", "tp")``.
        gpu: the profile of each rank's GPU or its name, see :func:`torchfake.profiles`.
        device: ``"cuda"`` if not given, ``"cpu"`` for ranks without a GPU.
        ranks: to run each of these, and be about no other.
        reserved_bytes: of the GPU's memory, not for tensors.
        round_to: bytes that an allocation is rounded up to; 512 on CUDA, 1 elsewhere.
        workspace_bytes: of cuBLAS; not given: as torch has it on that GPU.

    Returns:
        The plan. Bytes are a rank's own; see :class:`Plan`.

    Raises:
        InputsError: if the arguments do not fit each other, a process group is initialised, or a
            part of it fails; the message names the part and the rank.
        DeviceError: if there is no such device or profile.
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
    check_free()
    layout = layout_of(mesh_shape, mesh_dim_names)
    _check_functions(module_fn, parallelize, reserved_bytes)
    on = _device(device, gpu)
    profile = None if gpu is None else _cuda.profile(gpu)
    nothing_yet = Subject(nn.Module(), device=on, gpu=profile)
    step = step_of(nothing_yet, mode, optimizer, loss, autocast, None, round_to, workspace_bytes)
    job = Job(module_fn, parallelize, inputs, step, layout, on, profile)
    found = _run_some(job, ranks) if ranks is not None else _run_all(job)
    first = found[0].estimate
    return Plan(
        first.class_name, step.mode, layout, first.device, first.gpu, reserved_bytes, tuple(found)
    )


def _check_functions(module_fn: Any, parallelize: Any, reserved_bytes: Any) -> None:
    if isinstance(module_fn, nn.Module) or not callable(module_fn):
        raise InputsError(
            f"module_fn is a {type(module_fn).__name__}: give a function that builds the model, "
            "such as lambda: Model(config)"
        )
    if parallelize is not None and not callable(parallelize):
        raise InputsError(f"parallelize={parallelize!r} is not a function of a module and a mesh")
    if not isinstance(reserved_bytes, int) or reserved_bytes < 0:
        raise InputsError(f"reserved_bytes={reserved_bytes!r} is not a number of bytes")


def _device(device: torch.device | str | None, gpu: str | CudaProfile | None) -> torch.device:
    try:
        on = any_device("cuda" if device is None else device)
    except RuntimeError as error:
        raise DeviceError(f"there is no device {device!r}; give cpu or cuda") from error
    if on.index:
        raise DeviceError(f"device={device!r}: each rank has one GPU of its own; give cuda")
    if on.type != "cuda" and gpu is not None:
        raise DeviceError(f"gpu={gpu!r} and device={device!r}: give one of them")
    return on


def _run_all(job: Job) -> list[RankPlan]:
    """One of each kind of rank, and it for all of its kind.

    Shards of other sizes may be met only by a rank that has them, so kinds are told apart anew
    after each run.
    """
    runs: dict[int, RankRun] = {}
    columns: dict[Any, np.ndarray[Any, Any]] = {}
    while True:
        kinds = alike(job.layout, columns.values())
        missing = [ranks[0] for ranks in kinds if not runs.keys() & set(ranks)]
        if not missing:
            return [_plan_of(runs[ranks[0]], ranks) for ranks in kinds]
        runs[missing[0]] = run_rank(job, missing[0])
        columns.update(runs[missing[0]].columns)


def _run_some(job: Job, ranks: Iterable[int]) -> list[RankPlan]:
    last = job.layout.num_ranks - 1
    try:
        wanted = sorted({operator.index(rank) for rank in ranks if not isinstance(rank, bool)})
    except TypeError:
        wanted = []
    if not wanted or wanted[0] < 0 or wanted[-1] > last:
        raise InputsError(f"ranks={ranks!r}: give several, such as [0, {last}], from 0 to {last}")
    return [_plan_of(run_rank(job, rank), [rank]) for rank in wanted]


def _plan_of(run: RankRun, ranks: list[int]) -> RankPlan:
    return RankPlan(tuple(ranks), run.traffic, run.estimate, run.roles)
