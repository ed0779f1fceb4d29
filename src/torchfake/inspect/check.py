"""Does it run: a forward pass on fakes, and where it failed if it does not.

Enters: a module and inputs. Leaves: the structure of the output, or a CheckError that says which
module, which operation, on what, and on which line. Invariant: the module is not touched.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from torchfake._dispatch import FakeDispatch, dispatch
from torchfake._origin import is_library
from torchfake.errors import CheckError, TorchFakeError
from torchfake.inspect.bounds import check_indices
from torchfake.inspect.running import Running
from torchfake.inspect.shown import Shown
from torchfake.inspect.specs import call_text, described, plain_structure
from torchfake.inspect.steps import default_loss, run_backward
from torchfake.inspect.subject import Subject, Twin, subject_of


@dataclass(frozen=True, repr=False)
class Checked(Shown):
    """What a module gives for some inputs."""

    class_name: str
    inputs: Any  # as described() has it: specs in place of tensors
    output: Any

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return {
            "class_name": self.class_name,
            "inputs": plain_structure(self.inputs),
            "output": plain_structure(self.output),
        }


def check(
    module: nn.Module,
    *inputs: Any,
    backward: bool = False,
    device: torch.device | str | None = None,
    gpu: str | None = None,
) -> Checked:
    """Run `module` on fakes of `inputs`, and say what comes out.

    Args:
        module: fake, deferred or real; it is not touched.
        inputs: as its forward takes them; a lone mapping is taken as keyword arguments.
        backward: run the backward pass too.
        device: where it is to run; where it is, if not given.
        gpu: a profile's name; means ``device="cuda"``.

    Returns:
        The structure of the output: the same containers, with shape, dtype and device in place of
        each tensor.

    Raises:
        CheckError: if it does not run. The message, and the error's attributes, name the module,
            the operation, its arguments, and the line; ``__cause__`` is the error itself.

    >>> check(nn.Linear(3, 4), torch.ones(2, 3))
    input 0  float32[2, 3] on cpu
    output   float32[2, 4] on cpu
    """
    subject = subject_of(module, inputs, device=device, gpu=gpu)
    twin = subject.twin()
    running, calls, slot = Running(twin.module), _Calls(), _Failing()
    try:
        with twin.mode(), slot.open(), calls:
            output = _run(twin, backward)
    except TorchFakeError as error:  # what fakes cannot do is not the inputs' fault
        where = _failed_part(subject, running, error)[1]
        raise type(error)(f"in {where}: {error}") from error
    except Exception as error:
        raise _failure(subject, running, calls, slot, error) from error
    return Checked(type(module).__name__, described(twin.inputs), described(output))


def _run(twin: Twin, backward: bool) -> Any:
    if not backward:
        with torch.no_grad():
            return twin()
    output = twin()
    run_backward(default_loss(output))
    return output


class Failed(NamedTuple):
    """A call that raised."""

    func: Any
    args: Any
    kwargs: Any
    error: Exception

    def led_to(self, error: BaseException | None) -> bool:
        """Whether it is why `error` was raised; a model may have caught it and gone on."""
        return is_behind(id(self.error), error)


def is_behind(first: int, error: BaseException | None) -> bool:
    """Whether an error, known by its id, is `error` or what that was raised from."""
    while error is not None and id(error) != first:
        error = error.__cause__ or error.__context__
    return error is not None


class _Calls(TorchFunctionMode):
    """Keeps the torch function that raised, as the program called it."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: Failed | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.failed = Failed(func, args, kwargs or {}, error)
            raise


class _Failing(FakeDispatch):
    """The same of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: Failed | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            check_indices(func, args)
            return dispatch(self, func, types, args, kwargs or {})
        except Exception as error:
            self.failed = Failed(func, args, kwargs or {}, error)
            raise


def _failed_part(subject: Subject, running: Running, error: Exception) -> tuple[str, str]:
    """The full name of the module that failed, and how a message names it."""
    name = running.name
    if running.failure is not None and is_behind(running.failure[0], error):
        name = running.failure[1]
    part = type(subject.module.get_submodule(name)).__name__
    return name, f"{name or 'its own forward'} ({part})"


def _failure(
    subject: Subject, running: Running, calls: _Calls, slot: _Failing, error: Exception
) -> CheckError:
    """The error for what went wrong, from the innermost that is known of it."""
    function, operator = (
        failed if failed is not None and failed.led_to(error) else None
        for failed in (calls.failed, slot.failed)
    )
    found = CheckError("")
    found.module, where = _failed_part(subject, running, error)
    found.function = "" if function is None else _function_name(function.func)
    found.op, found.arguments = _operation(operator, function)
    found.line, found.source = _line_of(error.__traceback__)
    found.args = (
        f"{type(subject.module).__name__} does not run on these inputs: in "
        f"{where}"
        + (f", {found.op}({found.arguments})" if found.op else "")
        + (f" called by {found.function}" if found.function and operator else "")
        + f": {' '.join(str(error).split()) or type(error).__name__}"
        + (f"; at {found.line}: {found.source}" if found.line else ""),
    )
    return found


def _operation(operator: Failed | None, function: Failed | None) -> tuple[str, str]:
    """Its name, and its arguments as text."""
    if operator is not None:
        names = [argument.name for argument in operator.func._schema.arguments]
        given = dict(zip(names, operator.args, strict=False)) | operator.kwargs
        return str(operator.func), call_text(list(given), list(given.values()))
    if function is not None:
        names = [""] * len(function.args) + list(function.kwargs)
        values = [*function.args, *function.kwargs.values()]
        return _function_name(function.func), call_text(names, values)
    return "", ""


def _function_name(func: Any) -> str:
    name = resolve_name(func) or getattr(func, "__name__", None) or str(func)
    return str(name).removeprefix("torch._C.")


def _line_of(trace: TracebackType | None) -> tuple[str, str]:
    """The innermost line that is neither torch's nor ours, and what it says."""
    line = source = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library(code):
            line = f"{code.co_filename}:{trace.tb_lineno}"
            source = linecache.getline(code.co_filename, trace.tb_lineno).strip()
        trace = trace.tb_next
    return line, source
