"""Whether a module runs on its inputs: a forward pass on fakes, and where it fails.

Input: a module and inputs. Output: the structure of the output, or a CheckError that names the
module, the operator, its arguments and the line. Invariant: the module is not changed.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from torchfake._core import arguments
from torchfake._core.gpu_profiles import CudaProfile
from torchfake._torch import autograd
from torchfake.errors import CheckError, TorchFakeError
from torchfake.inspect.contents.positions import too_long
from torchfake.inspect.copies.workload import FakeCopy, Workload, check_module, workload_of
from torchfake.inspect.inputs.example_inputs import has_inputs
from torchfake.inspect.inputs.given import (
    SHORTER,
    Shape,
    inputs_given,
    lacks_arguments,
)
from torchfake.inspect.inputs.hints import inputs_needed
from torchfake.inspect.inputs.resizing import text_length
from torchfake.inspect.records.messages import answers_to_dict, assumed_text
from torchfake.inspect.records.record import Record
from torchfake.inspect.records.tensor_specs import arguments_text, to_json, to_specs
from torchfake.inspect.steps.backward import default_loss, run_backward
from torchfake.inspect.storages.bounds_check import LOOKUP, check_indices
from torchfake.observe import (
    Answer,
    AnswerFunction,
    Observer,
    RunningModules,
    is_library_code,
    observing,
)


@dataclass(frozen=True, repr=False)
class Checked(Record):
    """The structure of a module's output for some inputs."""

    class_name: str
    inputs: Any  # as to_specs() returns them: specs in place of tensors
    output: Any  # as to_specs() returns it
    answers: tuple[Answer, ...] = ()  # to questions about unknown values

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, as a dict for JSON."""
        return {
            "class_name": self.class_name,
            "inputs": to_json(self.inputs),
            "output": to_json(self.output),
            **answers_to_dict(self.answers),
        }


def check(
    module: nn.Module,
    *inputs: Any,
    backward: bool = False,
    device: torch.device | str | None = None,
    gpu: str | CudaProfile | None = None,
    answer: str | AnswerFunction | None = None,
    batch: int | None = None,
    seq: int | None = None,
    input_size: Shape | Sequence[Shape] | None = None,
) -> Checked:
    """Run `module` on fakes of `inputs`, and return the structure of its output.

    Args:
        module: fake, deferred or real; it is not modified.
        inputs: the arguments of its ``forward``; a single mapping is used as keyword arguments.
        backward: run the backward pass too.
        device: the device to run on; by default that of the module.
        gpu: a GPU profile or its name; implies ``device="cuda"``.
        answer: supplies unknown values: ``"typical"`` or a function, as for
            :func:`torchfake.fake_mode`. ``answers`` of the result lists the answers given.
        batch: instead of inputs: a batch size; :func:`example_inputs` generates the inputs.
        seq: instead of inputs: the sequence length of generated inputs.
        input_size: instead of inputs: the shape of a tensor, batch first, or a list of shapes.

    Returns:
        The structure of the output: the same containers, with shape, dtype and device in place of
        each tensor.

    Raises:
        CheckError: if the module fails. The message and the error's attributes name the submodule,
            the operation, its arguments and the line; ``__cause__`` is the original error.

    >>> check(nn.Linear(3, 4), torch.ones(2, 3))
    input 0  float32[2, 3] on cpu
    output   float32[2, 4] on cpu
    """
    arguments.check_flag(backward, "backward")
    check_module(module)
    inputs = inputs_given(
        module, inputs, batch=batch, seq=seq, input_size=input_size, labels=backward
    )
    workload = workload_of(module, inputs, device=device, gpu=gpu, answer=answer)
    fake_copy = workload.fake_copy()
    run = _Run(workload, RunningModules(fake_copy.module), _FunctionWatch(), _OperatorWatch())
    try:
        with fake_copy.mode(), observing(run.operators), run.functions:
            output = _run(fake_copy, backward)
    except TorchFakeError as error:  # a limit of fakes: not an error of the module or its inputs
        where = run.failed_module(error)[1]
        raise type(error)(f"in {where}: {error}") from error
    except Exception as error:
        raise run.check_error(error, fake_copy.answers) from error
    name, answers = type(module).__name__, fake_copy.answers
    return Checked(name, to_specs(fake_copy.inputs), to_specs(output), answers)


def _run(fake_copy: FakeCopy, backward: bool) -> Any:
    if not backward:
        with autograd.no_grad():
            return fake_copy()
    output = fake_copy()
    run_backward(default_loss(output))
    return output


class FailedCall(NamedTuple):
    """A call that raised."""

    func: Any
    args: Any
    kwargs: Any
    error: Exception

    def is_cause_of(self, error: BaseException | None) -> bool:
        """Whether the call caused `error`; the model may have caught the call's own error."""
        return is_in_chain(id(self.error), error)


def is_in_chain(error_id: int, error: BaseException | None) -> bool:
    """Whether the error with this id is `error`, or in its chain of causes and contexts."""
    while error is not None and id(error) != error_id:
        error = error.__cause__ or error.__context__
    return error is not None


class _FunctionWatch(TorchFunctionMode):
    """Records the last torch function that raised, with the arguments of the program's call."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: FailedCall | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.failed = FailedCall(func, args, kwargs or {}, error)
            raise


class _OperatorWatch(Observer):
    """Records the last operator that raised."""

    sees_storages = False

    def __init__(self) -> None:
        super().__init__()
        self.failed: FailedCall | None = None

    def call_operator(self, run: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            if func is LOOKUP:
                check_indices(args)
            return run(func, types, args, kwargs)
        except Exception as error:
            self.failed = FailedCall(func, args, kwargs, error)
            raise


class _Run(NamedTuple):
    """The state of a run, from which an error is explained."""

    workload: Workload
    modules: RunningModules
    functions: _FunctionWatch
    operators: _OperatorWatch

    def failed_module(self, error: Exception) -> tuple[str, str]:
        """The full name of the module that failed, and the text that names it in a message."""
        name = self.modules.name
        if self.modules.failure is not None and is_in_chain(self.modules.failure[0], error):
            name = self.modules.failure[1]
        class_name = type(self.workload.module.get_submodule(name)).__name__
        return name, f"{name or 'its own forward'} ({class_name})"

    def missing_inputs(self, error: Exception) -> str:
        """Advice for the message, if the module was given no inputs and needs some; else ""."""
        w = self.workload
        if w.args or w.kwargs:
            return ""
        if has_inputs(w.module):
            remedy = "write batch=1, which generates inputs, or give the inputs"
        elif lacks_arguments(error):
            remedy = inputs_needed(w.module)
        else:
            return ""
        return f". No inputs were given: {remedy}"

    def past_positions(self, error: Exception) -> str:
        """Advice for the message, if the text is longer than the model's positions; else ""."""
        w = self.workload
        refusal = too_long(error, w.module, text_length(w), SHORTER)
        return f"; {refusal}" if refusal else ""

    def check_error(self, error: Exception, answers: Sequence[Answer]) -> CheckError:
        """The CheckError for an error, which describes the innermost known call that failed."""
        function, operator = (
            failed if failed is not None and failed.is_cause_of(error) else None
            for failed in (self.functions.failed, self.operators.failed)
        )
        found = CheckError("")
        found.module, where = self.failed_module(error)
        found.function = "" if function is None else _function_name(function.func)
        found.op, found.arguments = _operation(operator, function)
        found.line, found.source = _line_of(error.__traceback__)
        found.args = (
            f"{type(self.workload.module).__name__} does not run on these inputs: in "
            f"{where}"
            + (f", {found.op}({found.arguments})" if found.op else "")
            + (f" called by {found.function}" if found.function and operator else "")
            + f": {' '.join(str(error).split()) or type(error).__name__}"
            + (f"; at {found.line}: {found.source}" if found.line else "")
            + self.missing_inputs(error)
            + self.past_positions(error)
            + assumed_text(answers),
        )
        return found


def _operation(operator: FailedCall | None, function: FailedCall | None) -> tuple[str, str]:
    """The name of the innermost call that failed, and its arguments as text."""
    if operator is not None:
        names = [argument.name for argument in operator.func._schema.arguments]
        given = dict(zip(names, operator.args, strict=False)) | operator.kwargs
        return str(operator.func), arguments_text(list(given), list(given.values()))
    if function is not None:
        names = [""] * len(function.args) + list(function.kwargs)
        values = [*function.args, *function.kwargs.values()]
        return _function_name(function.func), arguments_text(names, values)
    return "", ""


def _function_name(func: Any) -> str:
    name = resolve_name(func) or getattr(func, "__name__", None) or str(func)
    return str(name).removeprefix("torch._C.")


def _line_of(trace: TracebackType | None) -> tuple[str, str]:
    """The innermost line that is in neither torch nor torchfake, and its source."""
    line = source = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library_code(code):
            line = f"{code.co_filename}:{trace.tb_lineno}"
            source = linecache.getline(code.co_filename, trace.tb_lineno).strip()
        trace = trace.tb_next
    return line, source
