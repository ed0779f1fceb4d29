"""Runs a step that is a function of the user (a program) on fakes, and detects its phases.

Input: a function and its arguments. Output: a :class:`ProgramRun`: the lifetimes of all storages in
the first call and in a second one. Invariant: between the calls, only storages that the program
keeps are alive.

An operator belongs to the backward pass if autograd's engine runs it, to the optimizer if it runs
between the hooks of an optimizer's step, and otherwise to the forward pass.
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

from torchfake._core.gpu_profiles import AlikeGpus, CudaProfile
from torchfake._torch import autograd
from torchfake.errors import InputsError
from torchfake.inspect.copies.programs import ProgramCopy
from torchfake.inspect.copies.references import Reached
from torchfake.inspect.copies.workload import Workload, main_device, workload_of
from torchfake.inspect.steps.module_tensors import gradients_of, register_all, state_of
from torchfake.inspect.steps.optimizers import lbfgs_refused
from torchfake.inspect.storages.lifetimes import PHASES, Lifetimes
from torchfake.inspect.storages.storage_tracker import StorageTracker
from torchfake.inspect.timing.commands import CommandRecorder, recorder_for
from torchfake.observe import Answerer, AnswerFunction, RunningModules

_OPTIMIZER_COPIED = r"Seems like `optimizer.step\(\)` has been overridden"
"""The warning that a learning rate scheduler gives because its optimizer is a copy."""


def is_program(value: Any) -> bool:
    """Whether a value is a function, and neither a module nor a class."""
    return callable(value) and not isinstance(value, (nn.Module, type))


def workload_of_program(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    device: torch.device | str | int | None,
    gpu: str | CudaProfile | AlikeGpus | None,
    answer: str | AnswerFunction | None,
) -> Workload:
    """The workload of a step that is a function; for the options see ``workload_of``."""
    tensors = tuple(Reached((function, args)).tensors)
    workload = workload_of(nn.Module(), tensors, device=device, gpu=gpu, answer=answer)
    return replace(workload, program=(function, args))


@dataclass(frozen=True)
class ProgramRun:
    """The storages, operators and commands of a program's two calls."""

    name: str  # of the function
    first: Lifetimes  # in the first call
    later: Lifetimes  # in the second call
    ops: frozenset[Any]  # all operators that ran
    module: nn.Module  # the fake copies of all modules
    commands: CommandRecorder | None  # recorded those of the second call
    device: torch.device  # the requested device, or the one with most parameter bytes

    @property
    def mode(self) -> str:
        """``"training"`` if the program ran a backward pass, otherwise ``"inference"``."""
        goes_backward = bool((self.later.phase == PHASES.index("backward")).any())
        return "training" if goes_backward else "inference"


class ProgramTracker(StorageTracker):
    """Records the allocations of a program, and detects its phases."""

    def __init__(
        self,
        program: ProgramCopy,
        modules: RunningModules,
        commands: CommandRecorder | None = None,
        *,
        has_workspace: bool = False,
    ) -> None:
        super().__init__(modules, commands, has_workspace=has_workspace)
        self._module = program.modules
        self._optimizers = program.optimizers
        self._num_stepping = 0  # the number of optimizers whose step is running

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
        """Detect the phase that is running; if it is another, categorize the last one's tensors."""
        phase = self._phase()
        if phase == self.phase:
            return
        if self.phase in ("forward", "start"):
            self.end_forward()
        elif self.phase == "backward":
            self.recategorize(gradients_of(self._module), "gradients")
        else:
            self._name_optimizer_state()
        self.phase = phase

    def _phase(self) -> str:
        if autograd.is_going_backward():
            return "backward"
        return "optimizer" if self._num_stepping else "forward"

    def _name_optimizer_state(self) -> None:
        for optimizer in self._optimizers:
            self.recategorize(state_of(optimizer, self._module), "optimizer state")

    def register_existing(self, program: ProgramCopy, before: ProgramTracker | None = None) -> None:
        """Record the tensors that exist before a call; `before` has tracked the previous call."""
        register_all(self._module, self)
        self.register(gradients_of(self._module), "gradients")
        for optimizer in self._optimizers:
            self.register(state_of(optimizer, self._module), "optimizer state")
        self.register((("", tensor) for tensor in program.tensors()), "inputs")
        if before is not None:
            self.register_survivors(before)

    def run(self, program: Callable[[], Any]) -> Lifetimes:
        """Call the program once, and return the lifetimes of its storages."""
        hooked = [o for o in self._optimizers if hasattr(o, "_optimizer_step_pre_hooks")]
        hooks = [hook for optimizer in hooked for hook in self._watch(optimizer)]
        with self.active():
            self.phase = "forward"
            program()
            self._notice()
            self.end_step()
        for hook in hooks:
            hook.remove()
        return self.finish()


def run_program(workload: Workload, answerer: Answerer, *, has_workspace: bool) -> ProgramRun:
    """Run a program twice on a fake copy: only the second call finds the optimizer's state."""
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
        modules = RunningModules(program.modules)  # shared by both calls, since its hooks stay
        make = partial(ProgramTracker, program, modules, has_workspace=has_workspace)
        first, later = make(), make(recorder_for(device))
        first.register_existing(program)
        first_lives = first.run(program)
        later.register_existing(program, first)
        lives = later.run(program)
    ops = frozenset(first.ops | later.ops)
    return ProgramRun(name, first_lives, lives, ops, program.modules, later.commands, device)
