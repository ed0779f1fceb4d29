"""The public record ``Strategy``: a layout over a mesh, which generates the sharding function.

Input: sizes of axes and options. Output: the code that lays a model out over the mesh, and a
function for ``plan`` that runs it. Invariant: the printed code is the code that is run.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from torchfake._torch.distributed.training import zero_optimizer_class
from torchfake.distributed.parallelize.checkpoints import check_choices
from torchfake.distributed.parallelize.code import (
    MESH_IMPORT,
    call_text,
    code_of,
    optimizer_text,
)
from torchfake.distributed.parallelize.context_parallel import context_usage, in_ring
from torchfake.distributed.parallelize.data_parallel import (
    ENGINES,
    INFERENCE,
    STAGES,
    check_engine,
)
from torchfake.distributed.parallelize.mesh_axes import MeshAxes, mesh_axes
from torchfake.distributed.parallelize.pipeline_stages import (
    DEFAULT,
    check_micro_batches,
    schedule_named,
)
from torchfake.distributed.parallelize.tensor_parallel import tensor_rules
from torchfake.distributed.parallelize.writer import Code
from torchfake.errors import InputsError, listed

PRECISIONS = ("mixed", "bf16", "fp32")
_FILE = "<torchfake.distributed.Strategy>"


@dataclass(frozen=True)
class Strategy:
    """A layout of a model over a mesh, derived from the model.

    It can be passed as ``plan(parallelize=...)``, and printed as code. FSDP2 shards the repeated
    blocks of the model one by one, and then the root. The blocks of a transformers model are its
    ``_no_split_modules``; those of other models are modules of the same class in a list. Tensors
    are split by the plan that ships with a transformers model, or by `tensor_plan`.

    Args:
        mesh: the sizes of the axes by name, outermost first. ``dp`` (also ``fsdp``, ``shard``,
            ``dp_shard``) shards parameters; ``replicate`` (``dp_replicate``, ``ddp``) keeps copies
            (HSDP together with ``dp``, otherwise data parallelism as in DDP); ``tp`` splits
            tensors, ``cp`` sequences, ``ep`` experts, which are assumed to receive equal numbers of
            tokens; ``pp`` splits the layers into pipeline stages.
        checkpoint: activation checkpointing: ``"none"``; ``"full"``, which keeps only the inputs of
            each block; or ``"selective"``, which also keeps attention and every second matrix
            product. A number N applies ``full`` to the first N blocks;
            ``"full:0-11,selective:12-15"`` selects blocks by number, starting at 0.
        precision: ``"mixed"``: parameters in their own dtype (float32), computation in bfloat16,
            gradient reduction in float32; ``"bf16"`` and ``"fp32"``: everything in the dtype in
            which the model was built.
        zero: the ZeRO stage: 3, or 2, which keeps gathered parameters from the forward to the
            backward pass (``reshard_after_forward=False``); with ``engine="ddp"`` 0, or 1, which
            splits the optimizer state over the ranks (``ZeroRedundancyOptimizer``): see
            :meth:`optimizer`.
        offload: keep shards in CPU memory (``CPUOffloadPolicy``).
        tensor_plan: your own tensor-parallel plan: ``"colwise"``, ``"rowwise"`` or another style of
            transformers, by module name with ``*`` for numbers.
        sequence_parallel: also split the sequence along ``tp`` where tensors are not split, in
            norms and residuals.
        schedule: the pipeline schedule: ``"1f1b"`` (default), ``"gpipe"``, ``"interleaved"``,
            ``"breadth-first"``, ``"zero-bubble"``, ``"zbv"``, ``"dualpipev"``, or the name of a
            class in ``torch.distributed.pipelining``. All except the first two have two stages per
            rank.
        microbatches: the number of micro-batches of a pipeline in a step, by default two per rank
            of ``pp``.
        engine: ``"fsdp2"``, ``"fsdp1"`` (FullyShardedDataParallel) or ``"ddp"``
            (DistributedDataParallel); ``"inference"`` leaves out what is for gradients: each rank
            of ``ep`` has all parameters but those of other ranks' experts (also of ``tp``, with
            ``ep=1``); where there are fewer key-value heads than ranks of ``tp``, ranks have the
            same ones.

    Raises:
        InputsError: if an option is invalid.

    >>> from torchfake import fake_mode
    >>> with fake_mode():
    ...     model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    >>> print(Strategy({"dp": 8}, precision="fp32").code(model))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    <BLANKLINE>
    <BLANKLINE>
    def parallelize(model, mesh):
        for block in model:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        return model
    <BLANKLINE>
    <BLANKLINE>
    mesh = init_device_mesh("cuda", (8,), mesh_dim_names=("dp",))
    model = parallelize(model, mesh)
    """

    mesh: Mapping[str, int]
    checkpoint: str | int = "none"
    precision: str = "mixed"
    zero: int | None = None
    offload: bool = False
    tensor_plan: Mapping[str, str] | None = None
    sequence_parallel: bool = False
    schedule: str | None = None
    microbatches: int | None = None
    engine: str = "fsdp2"

    def __post_init__(self) -> None:
        if not isinstance(self.mesh, Mapping):
            raise InputsError(f"mesh={self.mesh!r}: give sizes of axes by name, {{'dp': 8}}")
        axes = mesh_axes(self.mesh)
        check_choices(self.checkpoint)
        _check_choice("precision", self.precision, PRECISIONS)
        _check_choice("engine", self.engine, ENGINES)
        if self.zero is None:
            object.__setattr__(self, "zero", STAGES[self.engine][0])
        check_engine(self.engine, axes, self.stage, self.offload)
        if self.offload and not axes.wraps_modules:
            raise InputsError(
                "offload needs FSDP2: give the mesh an axis that shards, dp=2 or more"
            )
        if self.tensor_plan is not None and axes.tensor_ranks == 1:
            raise InputsError("tensor_plan is for an axis tp, which the mesh does not have")
        if self.sequence_parallel and axes.tensor_ranks == 1:
            raise InputsError("sequence_parallel splits along tp: give the mesh tp=2 or more")
        if self.sequence_parallel and axes.pipeline_ranks > 1:
            raise InputsError(
                f"stages of {axes.pipeline} send tensors, and with sequence_parallel they would be "
                "DTensors: leave one of them out"
            )
        self._check_pipeline(axes)

    def _check_pipeline(self, axes: MeshAxes) -> None:
        if self.schedule is not None:
            schedule_named(self.schedule)
        if axes.pipeline_ranks > 1:
            others = [name for name in (axes.context, axes.experts) if axes.sizes.get(name, 1) > 1]
            if others:
                raise InputsError(
                    f"the mesh has {axes.pipeline} and {others[0]}, which cannot be combined: "
                    "leave one out, or give plan a parallelize= of your own"
                )
            if self.checkpoint not in ("none", "selective", "full"):
                raise InputsError(
                    f"checkpoint={self.checkpoint!r} names blocks of the whole model, and a stage "
                    "has some of them: give none, selective or full with pp"
                )
            check_micro_batches(
                self.schedule or DEFAULT, self.num_microbatches, axes.pipeline_ranks
            )
        elif self.schedule is not None or self.microbatches is not None:
            name = "schedule" if self.schedule is not None else "microbatches"
            raise InputsError(f"{name} is for pipelines: give the mesh pp=2 or more")

    @property
    def schedule_name(self) -> str | None:
        """The name of the pipeline schedule; None without a pipeline."""
        return (self.schedule or DEFAULT) if self.axes.pipeline_ranks > 1 else None

    @property
    def num_microbatches(self) -> int:
        """The number of micro-batches of a pipeline, by default two per rank."""
        if self.microbatches is not None:
            return self.microbatches
        return 2 * self.axes.pipeline_ranks if self.axes.pipeline_ranks > 1 else 1

    @property
    def axes(self) -> MeshAxes:
        """The axes of the mesh by purpose."""
        return mesh_axes(self.mesh)

    @property
    def stage(self) -> int:
        """The ZeRO stage, which says what is sharded over the ranks: nothing (0), optimizer state
        (1), also gradients (2), also parameters (3).
        """
        assert self.zero is not None
        return self.zero

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        """For ``plan(mesh_shape=...)``."""
        return tuple(self.axes.sizes.values())

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        """For ``plan(mesh_dim_names=...)``."""
        return tuple(self.axes.sizes)

    @property
    def autocast(self) -> torch.dtype | None:
        """For ``plan(autocast=...)``: bfloat16 if FSDP2 does not provide mixed precision."""
        is_alone = not self.axes.wraps_modules or self.engine in ("ddp", INFERENCE)
        is_alone = is_alone and self.precision == "mixed"
        return torch.bfloat16 if is_alone else None

    @property
    def plan_options(self) -> dict[str, Any]:
        """For ``plan(**strategy.plan_options, inputs=...)``: the mesh, the layout, the context of a
        micro-batch if sequences are split, and balanced routing for experts.
        """
        options = {
            "mesh_shape": self.mesh_shape,
            "mesh_dim_names": self.mesh_dim_names,
            "parallelize": self,
            "autocast": self.autocast,
        }
        if self.axes.context_ranks > 1:
            options |= {"context": partial(in_ring, self.axes), "unlike_axes": self.axes.context}
        if self.axes.expert_ranks > 1:
            options["routing"] = "balanced"
        return options

    @property
    def mixes_dtensors(self) -> bool:
        """Whether some parameters are DTensors and others are not: with tensor parallelism alone.
        Optimizers take ``foreach=False`` then, since torch refuses to update both in one call.
        """
        return not self.axes.wraps_modules and self.axes.tensor_ranks > 1

    def optimizer(self, kind: Any) -> Any:
        """For ``plan(optimizer=...)``: the optimizer of that name or class, adapted to the layout.

        Raises:
            InputsError: if the optimizer does not exist.
        """
        named = vars(torch.optim).items()
        known = {name.lower(): value for name, value in named if isinstance(value, type)}
        kind = known.get(kind.lower(), kind) if isinstance(kind, str) else kind
        if not isinstance(kind, type):
            raise InputsError(
                f"{kind!r} is not an optimizer of torch.optim: give a name such as adamw"
            )
        options = {}
        if self.mixes_dtensors and "foreach" in inspect.signature(kind).parameters:
            options["foreach"] = False
        if self.stage == 1:
            return partial(zero_optimizer_class(), optimizer_class=kind)
        return partial(kind, **options)

    def code(self, module: nn.Module, *, device: str = "cuda") -> str:
        """Return the code of this layout: a function ``parallelize``, the mesh, and the call.

        Args:
            module: the model; it is not changed.
            device: the device type of the mesh.

        Raises:
            InputsError: if the model does not support the layout.
        """
        code, call = self._function(module), call_text(self.axes, device)
        code.imports.add(MESH_IMPORT)
        if self.axes.context_ranks > 1:
            call += context_usage(module)
        if self.engine == "ddp" and self.autocast is not None:
            call += f'# forward passes run in torch.autocast("{device}", torch.bfloat16)\n'
        if self.stage == 1:
            name = "from torch.distributed.optim import ZeroRedundancyOptimizer"
            code.imports |= {"import torch", name}
            call += optimizer_text(self.axes)
        if self.mixes_dtensors and self.engine != INFERENCE:
            call += (
                "# optimizers take foreach=False: some parameters are DTensors, and some are not\n"
            )
        return f"{code.text()}\n\n{call}".rstrip()

    def __call__(self, module: nn.Module, mesh: Any) -> Any:
        """Lay the model out over a mesh with these axes, by running the code. Returns the model, or
        the schedule of a pipeline.
        """
        text = self._function(module).text()
        linecache.cache[_FILE] = len(text), None, text.splitlines(keepends=True), _FILE
        names: dict[str, Any] = {}
        exec(compile(text, _FILE, "exec"), names)
        return names["parallelize"](module, mesh)

    def _function(self, module: nn.Module) -> Code:
        axes = self.axes
        rules = None
        if axes.tensor_ranks > 1:
            is_inference = self.engine == INFERENCE
            size = axes.tensor_ranks
            rules = tensor_rules(module, self.tensor_plan, size, is_inference=is_inference)
        return code_of(
            module,
            axes,
            rules=rules,
            checkpoint=self.checkpoint,
            is_mixed=self.precision == "mixed",
            zero=self.stage,
            offload=self.offload,
            splits_sequence=self.sequence_parallel,
            schedule=None if self.schedule_name is None else schedule_named(self.schedule_name),
            num_microbatches=self.num_microbatches,
            engine=self.engine,
        )


def _check_choice(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise InputsError(f"{name} is {given!r}, which is not supported: give {listed(known)}")
