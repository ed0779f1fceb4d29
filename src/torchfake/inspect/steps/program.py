"""The run of a program on fakes, with the phases of a step as they are noticed.

Input: a function and its arguments. Output: a :class:`ProgramRun`: the lifetimes of all storages of
a later call, and the peaks of the first. Invariant: between calls, what the program keeps is alive,
and nothing else.

The program says nothing of phases. Forward is what runs outside of autograd's engine and of
optimizers; a backward pass is noticed by the engine, an optimizer by hooks on its copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake._core.gpu_profiles import CudaProfile
from torchfake._torch import autograd
from torchfake.errors import InputsError
from torchfake.inspect.copies.programs import ProgramCopy
from torchfake.inspect.copies.references import Reached
from torchfake.inspect.copies.workload import Workload, main_device, workload_of
from torchfake.inspect.steps.module_tensors import ModuleTensors
from torchfake.inspect.steps.optimizers import lbfgs_refused
from torchfake.inspect.storages.lifetimes import PHASES, Lifetimes
from torchfake.inspect.storages.storage_tracker import StorageTracker
from torchfake.inspect.timing.commands import Command, CommandRecorder, recorder_for
from torchfake.observe import Answerer, AnswerFunction, RunningModules

_OPTIMIZER_COPIED = r"Seems like `optimizer.step\(\)` has been overridden"
"""What a learning rate scheduler says of the copy of its optimizer."""


def is_program(value: Any) -> bool:
    """Whether this is a function, and no module."""
    return callable(value) and not isinstance(value, (nn.Module, type))


def workload_of_program(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    device: torch.device | str | int | None,
    gpu: str | CudaProfile | None,
    answer: str | AnswerFunction | None,
) -> Workload:
    """The workload of a step of the user's own: see ``workload_of``."""
    tensors = tuple(Reached((function, args)).tensors)
    workload = workload_of(nn.Module(), tensors, device=device, gpu=gpu, answer=answer)
    return replace(workload, program=(function, args))


@dataclass(frozen=True)
class ProgramRun:
    """What a program allocated."""

    name: str  # of the function
    first: Lifetimes  # in its first call
    later: Lifetimes  # in its second one
    ops: frozenset[Any]  # all operators that ran
    module: nn.Module  # the fake copies of all modules
    commands: tuple[Command, ...]  # of the second call
    device: torch.device  # that it was run on, or that most of its parameters are on

    @property
    def mode(self) -> str:
        """What it is, by whether autograd's engine ran."""
        goes_backward = bool((self.later.phase == PHASES.index("backward")).any())
        return "training" if goes_backward else "inference"


class ProgramTracker(StorageTracker):
    """Records allocations of a program that does all by itself."""

    def __init__(
        self,
        program: ProgramCopy,
        modules: RunningModules,
        commands: CommandRecorder | None = None,
        *,
        has_workspace: bool = False,
    ) -> None:
        super().__init__(modules, commands, has_workspace=has_workspace)
        self._tensors = ModuleTensors(program.modules)
        self._optimizers = program.optimizers
        self._num_stepping = 0  # optimizers that are running

    def _watch(self, optimizer: Optimizer) -> Iterator[Any]:
        yield optimizer.register_step_pre_hook(lambda *_: self._count(1))
        yield optimizer.register_step_post_hook(lambda *_: self._count(-1))

    def _count(self, change: int) -> None:
        self._num_stepping += change
        self._notice()

    def call_operator(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        self._notice()
        return super().call_operator(run, func, types, args, kwargs)

    def _notice(self) -> None:
        """Go on to the phase that is running now."""
        phase = self._phase()
        if phase == self.phase:
            return
        if self.phase in ("forward", "start"):
            self.end_forward()
        elif self.phase == "backward":
            self.recategorize(self._tensors.gradients(), "gradients")
        else:
            self._name_optimizer_state()
        self.phase = phase

    def _phase(self) -> str:
        if autograd.is_going_backward():
            return "backward"
        return "optimizer" if self._num_stepping else "forward"

    def _name_optimizer_state(self) -> None:
        for optimizer in self._optimizers:
            self.recategorize(self._tensors.optimizer_state(optimizer), "optimizer state")

    def register_existing(self, program: ProgramCopy, before: ProgramTracker | None = None) -> None:
        """Record what exists before a call."""
        self.register(self._tensors.parameters, "parameters")
        self.register(self._tensors.buffers, "buffers")
        self.register(self._tensors.gradients(), "gradients")
        for optimizer in self._optimizers:
            self.register(self._tensors.optimizer_state(optimizer), "optimizer state")
        self.register((("", tensor) for tensor in program.tensors()), "inputs")
        if before is not None:
            self.register_survivors(before)

    def run(self, program: Callable[[], Any]) -> Lifetimes:
        """Run one step."""
        hooks = [hook for optimizer in self._optimizers for hook in self._watch(optimizer)]
        with self.active():
            self.phase = "forward"
            program()
            self._notice()
            self.end_step()
        for hook in hooks:
            hook.remove()
        return self.finish()


def run_program(workload: Workload, answerer: Answerer, *, has_workspace: bool) -> ProgramRun:
    """Run a step twice on a fake copy: only later ones find what the first has made."""
    assert workload.program is not None
    function, args = workload.program
    name = getattr(function, "__name__", type(function).__name__)
    with workload.mode(answerer), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_OPTIMIZER_COPIED)
        program = ProgramCopy(function, args, workload.device)
        for optimizer in program.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise InputsError(lbfgs_refused(optimizer))
        device = workload.device or main_device(program.modules, program.tensors())
        modules = RunningModules(program.modules)  # whose hooks stay: one for both calls
        make = partial(ProgramTracker, program, modules, has_workspace=has_workspace)
        first, later = make(), make(recorder_for(device))
        first.register_existing(program)
        first_lives = first.run(program)
        later.register_existing(program, first)
        lives = later.run(program)
    ops = frozenset(first.ops | later.ops)
    return ProgramRun(
        name, first_lives, lives, ops, program.modules, later.recorded_commands, device
    )
