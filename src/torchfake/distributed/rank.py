"""One rank's step, run on fakes.

Enters: how a model is built, parallelized and trained, and a rank. Leaves: a :class:`RankRun`: the
books of its step. Invariant: torch.distributed, torch and the caller's switches are as they were,
whatever happened; a rank's step is run as ``estimate`` runs that of a whole model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchfake import _private_distributed as _private
from torchfake._cuda import CudaProfile
from torchfake._tensor import FakeTensor
from torchfake.distributed.layout import Layout
from torchfake.distributed.ledger import RankLedger, Traffic
from torchfake.distributed.patches import telling_of_fakes
from torchfake.distributed.shards import Uneven, local_tensors
from torchfake.distributed.world import as_rank
from torchfake.errors import InputsError, TorchFakeError
from torchfake.fake import Twins, tensors_of
from torchfake.inspect import memory
from torchfake.inspect.memory import CUDA_ROUNDING, Estimate
from torchfake.inspect.overrides import one_line
from torchfake.inspect.running import Running
from torchfake.inspect.steps import Step
from torchfake.inspect.subject import Subject, Twin


@dataclass(frozen=True)
class Job:
    """What every rank does."""

    module_fn: Callable[[], nn.Module]
    parallelize: Callable[[nn.Module, Any], nn.Module | None] | None
    inputs: Any  # of a rank: its forward's arguments, or a function that makes them
    step: Step
    layout: Layout
    device: torch.device
    gpu: CudaProfile | None  # what the device is; torchfake's default, if None

    @property
    def subject(self) -> Subject:
        """The device and its machine, for the mode that a rank runs in."""
        return Subject(nn.Module(), device=self.device, gpu=self.gpu)

    @property
    def profile(self) -> CudaProfile | None:
        """The GPU, if it is one."""
        return self.subject.profile if self.device.type == "cuda" else None


class RankRun(NamedTuple):
    """What was found of one rank."""

    rank: int
    estimate: Estimate
    roles: np.ndarray[Any, Any]  # of the estimate's lives: see torchfake.distributed.ledger
    traffic: tuple[Traffic, ...]
    columns: dict[Any, np.ndarray[Any, Any]]  # shards that are not the same size on all ranks


def run_rank(job: Job, rank: int) -> RankRun:
    """Build the model as `rank` has it, and run its step.

    Raises:
        InputsError: naming the part that fails, and the rank.
    """
    with as_rank(rank, job.layout.num_ranks), job.subject.mode(), telling_of_fakes():
        return _Rank(job, rank).run()


class _Rank:
    """A rank while it runs."""

    def __init__(self, job: Job, rank: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.job, self.rank = job, rank
        with self._blaming("the mesh"):
            self.mesh = init_device_mesh(
                job.device.type, job.layout.shape, mesh_dim_names=job.layout.axes
            )
        self._axes: dict[str, tuple[str, int]] = {}
        for axis, size in zip(job.layout.axes, job.layout.shape, strict=True):
            self._axes[self.mesh.get_group(axis).group_name] = axis, size

    def run(self) -> RankRun:
        module = self._built()
        name = type(module).__name__
        module = self._parallelized(module)
        args, kwargs = self._inputs()
        uneven = Uneven(self.job.layout)
        uneven.meet(module.parameters())
        uneven.meet(module.buffers())
        ledger = RankLedger(Running(module), uneven, self._where)
        twin = Twin(module, args, kwargs, self.job.subject, {})
        with self._blaming("the step", ledger.running):
            self.job.step.run(twin, ledger)
        return self._read(name, ledger)

    def _built(self) -> nn.Module:
        with self._blaming("module_fn"), self.job.device:
            module = self.job.module_fn()
        if not isinstance(module, nn.Module):
            raise InputsError(f"module_fn gave {module!r:.40}, not a torch.nn.Module")
        self._refuse_real(
            module, "module_fn gave a module that has real tensors: build it in module_fn, where"
        )
        return module

    def _refuse_real(self, module: nn.Module, what: str) -> None:
        held = (local for tensor in tensors_of(module) for local in local_tensors(tensor))
        if not all(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in held):
            raise InputsError(f"{what} they are fake")

    def _parallelized(self, module: nn.Module) -> nn.Module:
        if self.job.parallelize is None:
            return module.to(self.job.device)
        with self._blaming("parallelize"):
            module = self.job.parallelize(module, self.mesh) or module
        if not isinstance(module, nn.Module):
            raise InputsError(f"parallelize gave {module!r:.40}: it returns the module, or None")
        self._refuse_real(
            module,
            "parallelize gave a module that has real tensors: leave out what makes it real "
            "(materialize_module), for a plan runs it where",
        )
        if any(t.is_meta for tensor in tensors_of(module) for t in local_tensors(tensor)):
            module = module.to_empty(device=self.job.device)
        return module

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given, device = self.job.inputs, self.job.device
        is_made = callable(given) and not isinstance(given, (torch.Tensor, Mapping))
        if is_made:
            with self._blaming("inputs"), device:
                given = given()
        twins = Twins(device, known=True)

        def taken(value: Any) -> Any:
            is_ready = not isinstance(value, torch.Tensor) or (
                is_made and isinstance(local_tensors(value)[0], FakeTensor)
            )
            return value if is_ready else twins.of(value)

        if isinstance(given, Mapping):
            return (), {name: pytree.tree_map(taken, value) for name, value in given.items()}
        args = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        return () if given is None else tuple(pytree.tree_map(taken, value) for value in args), {}

    def _where(self, given: Any) -> tuple[str, int]:
        """The axis that a process group lies along, and its size."""
        group = _private.group_of(given)
        known = self._axes.get(group.group_name)
        if known is None:
            ranks = torch.distributed.get_process_group_ranks(group)
            known = self.job.layout.axis_along(ranks), len(ranks)
            self._axes[group.group_name] = known
        return known

    def _read(self, name: str, ledger: RankLedger) -> RankRun:
        job, profile = self.job, self.job.profile
        lives, roles = ledger.close_with_roles()
        here = np.array([device == str(job.device) for device in lives.device], dtype=bool)
        found = Estimate(
            class_name=name,
            mode=job.step.mode,
            device=str(job.device),
            gpu=profile,
            round_to=job.step.round_to or (CUDA_ROUNDING if profile else 1),
            workspace_bytes=memory.workspaces(profile, ledger, job.step),
            elsewhere=memory.peaks_elsewhere(lives, str(job.device)),
            lives=lives.rows(here),
            subject=job.subject,
            step=job.step,
        )
        return RankRun(self.rank, found, roles[here], ledger.traffic, ledger.uneven.columns)

    @contextlib.contextmanager
    def _blaming(self, part: str, running: Running | None = None) -> Iterator[None]:
        """Context: errors say of which part they are, and on which rank."""
        try:
            yield
        except TorchFakeError:
            raise
        except Exception as error:
            layout = self.job.layout
            failed = None if running is None else running.failure
            where = f" in {failed[1] or 'its own forward'}" if failed is not None else ""
            sizes = " x ".join(f"{a} {n}" for a, n in zip(layout.axes, layout.shape, strict=True))
            raise InputsError(
                f"{part} fails{where} on rank {self.rank} ({layout.text_of(self.rank)}) of the "
                f"mesh {sizes}: {one_line(error)}"
            ) from error
