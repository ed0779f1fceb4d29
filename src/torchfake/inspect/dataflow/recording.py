"""Records a run: every call of a module, every function, and whose results each of them reads.

Input: a fake copy of a module. Output: a :class:`Recording`. Invariant: a tensor is identified by
its id, and the contents of its storage by the last writer; a function reads only results of earlier
functions.

If a module returns its input unchanged, as Dropout does in evaluation mode, the recorder makes it
return an alias, so that later functions read from the module, and not from the source of its input.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from torchfake._torch import autograd
from torchfake.inspect.copies.workload import FakeCopy, tensors_in
from torchfake.inspect.records.tensor_specs import TensorSpec, spec_of
from torchfake.observe import FakeTensor, Observer, observing, storage_of

ROOT = 0
"""The number of the first call, the call of the model."""

OUTSIDE = -1
"""The scope of the model's inputs and outputs, which are in no call."""


class Read(NamedTuple):
    """A tensor that a function reads, and the function that made it."""

    maker: int  # number of the function that made the tensor
    tensor: int  # the tensor's id
    spec: TensorSpec


class Function(NamedTuple):
    """One function that ran, or an input or output of the model."""

    name: str
    scope: int  # number of the innermost call that it ran in
    reads: list[Read]
    made: list[TensorSpec]


class Call(NamedTuple):
    """One call of a module."""

    name: str  # the module's full name
    module: nn.Module
    scope: int  # number of the call around it
    first: int  # number of the first function in it
    ends: list[int]  # the number after its last function, once the call has ended
    outputs: list[TensorSpec]


class Recording(NamedTuple):
    """All calls and functions of a run, in order."""

    calls: list[Call]
    functions: list[Function]
    num_inputs: int  # so many functions at the beginning are the inputs, by name
    first_output: int  # the functions from this number on are the outputs


class _Recorder(Observer):
    """Records which tensors operators read and make. Its hooks record calls of modules, and replace
    inputs that a module returns unchanged by aliases.
    """

    sees_storages = False

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.functions: list[Function] = []
        self.stack: list[int] = []
        self.torch_function: tuple[str, list[int]] | None = None  # name; number once recorded
        self._makers: dict[int, int] = {}  # the maker of each tensor, by id
        self._writers: dict[int, int] = {}  # the last writer of each storage, by id
        self._kept: list[Any] = []  # keeps objects alive so that ids stay unique
        for name, child in module.named_modules():
            child.register_forward_pre_hook(partial(self._enter, name), prepend=True)
            child.register_forward_hook(self._exit, with_kwargs=True, always_call=True)

    @property
    def scope(self) -> int:
        return self.stack[-1] if self.stack else OUTSIDE

    def add(self, name: str, values: Any = (), made: Any = (), scope: int | None = None) -> int:
        """Add a function that reads `values` and makes `made`; its number."""
        scope = self.scope if scope is None else scope
        number = len(self.functions)
        self.functions.append(Function(name, scope, [], []))
        self.note_reads(number, values)
        for tensor in made:
            self.note_made(number, tensor)
        return number

    def add_input(self, label: str, tensors: list[torch.Tensor]) -> None:
        """Add an input; or if its tensors are those of earlier inputs, add its name to these."""
        new = [tensor for tensor in tensors if id(tensor) not in self._makers]
        if new or not tensors:
            number = self.add(label, (), new, OUTSIDE)
            for tensor in new:
                if id(storage_of(tensor)) not in self._writers:
                    self.note_written(number, tensor)  # other inputs may be views of it
        for number in dict.fromkeys(self._makers[id(t)] for t in tensors) if not new else ():
            function = self.functions[number]
            self.functions[number] = function._replace(name=f"{function.name}, {label}")

    def note_reads(self, number: int, tensors: Any) -> None:
        """Note that a function reads the tensors, as far as other functions made them."""
        reads = self.functions[number].reads
        for tensor in tensors:
            maker = self._maker_of(tensor)
            if maker is not None and maker != number:
                self._kept.append(tensor)
                reads.append(Read(maker, id(tensor), spec_of(tensor)))

    def note_made(self, number: int, tensor: torch.Tensor) -> None:
        """Note that a function made a tensor, or wrote to it."""
        self._kept.append(tensor)
        self._makers[id(tensor)] = number
        self.functions[number].made.append(spec_of(tensor))

    def _maker_of(self, tensor: Any) -> int | None:
        """The function that computed the current contents of a tensor: the last to write it."""
        maker = self._makers.get(id(tensor))
        writer = self._writers.get(id(storage_of(tensor)))
        known = [number for number in (maker, writer) if number is not None]
        return max(known, default=None)

    def operator_called(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        number = self._number_of(func)
        given = list(_tensors((args, kwargs)))
        if not _reads_no_values(func):
            self.note_reads(number, given)
        for tensor in _written(func, args, kwargs):
            self.note_written(number, tensor)
            self.note_made(number, tensor)
        viewed = {id(storage_of(tensor)) for tensor in given if isinstance(tensor, FakeTensor)}
        for tensor in _tensors(result):
            self.note_made(number, tensor)
            if id(storage_of(tensor)) not in viewed:
                self.note_written(number, tensor)

    def note_written(self, number: int, tensor: torch.Tensor) -> None:
        """Note that a function is the last writer of a tensor's storage."""
        storage = storage_of(tensor)
        if storage is not None:
            self._writers[id(storage)] = number
            self._kept.append(storage)

    def _number_of(self, func: Any) -> int:
        """The number of the function that an operator is part of."""
        if self.torch_function is not None:
            name, numbers = self.torch_function
            if numbers and self.functions[numbers[0]].scope == self.scope:
                return numbers[0]
            number = self.add(name)
            numbers[:] = [number]
            return number
        return self.add(str(getattr(func, "_overloadpacket", func)).removeprefix("aten."))

    def _enter(self, name: str, module: nn.Module, args: Any) -> None:
        call = Call(name, module, self.scope, len(self.functions), [], [])
        self.stack.append(len(self.calls))
        self.calls.append(call)

    def _exit(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        while self.stack and self.calls[self.stack[-1]].module is not module:
            self.stack.pop()
        if not self.stack:
            return None
        call = self.calls[self.scope]
        replaced = self._note_outputs(call, (args, kwargs), output)
        call.ends.append(len(self.functions))
        self.stack.pop()
        return replaced

    def _note_outputs(self, call: Call, given: Any, output: Any) -> Any:
        """Note the outputs of a call; return an alias if its only output is one of its inputs."""
        replaced = None
        tensors = list(_tensors(output))
        passed = [t for t in tensors if not self._is_made_in(call, t)]
        if len(tensors) == 1 and tensors[0] is output and passed and type(output) is FakeTensor:
            if any(tensor is output for tensor in _tensors(given)):
                self.torch_function = "return", []
                with autograd.no_grad():
                    replaced = torch.ops.aten.alias.default(output)
                self.torch_function = None
                passed = []
        for tensor in passed:  # one function each, because no tensor depends on the others
            self.add("return", [tensor], [tensor])
        call.outputs.extend(spec_of(tensor) for tensor in tensors)
        return replaced

    def _is_made_in(self, call: Call, tensor: torch.Tensor) -> bool:
        maker = self._maker_of(tensor)
        return maker is not None and maker >= call.first


class _FunctionNames(TorchFunctionMode):
    """Tells a recorder which torch function the running operators are part of."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.recorder.torch_function
        if before is None:
            self.recorder.torch_function = _function_name(func), []
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.recorder.torch_function = before


def record(fake_copy: FakeCopy) -> Recording:
    """Run a fake copy forward once, and return the recording."""
    recorder = _Recorder(fake_copy.module)
    names: list[tuple[int | str, Any]] = [*enumerate(fake_copy.args), *fake_copy.kwargs.items()]
    for name, value in names:
        label = _argument_name(fake_copy.module, name) if isinstance(name, int) else str(name)
        recorder.add_input(label, tensors_in(value))
    num_inputs = len(recorder.functions)
    with fake_copy.mode(), observing(recorder), _FunctionNames(recorder), autograd.no_grad():
        output = fake_copy()
    first_output = len(recorder.functions)
    for label, value in _named_outputs(output):
        recorder.add(label, tensors_in(value), (), OUTSIDE)
    return Recording(recorder.calls, recorder.functions, num_inputs, first_output)


def _argument_name(module: nn.Module, position: int) -> str:
    with contextlib.suppress(ValueError, TypeError):  # of a function that has no signature
        parameters = inspect.signature(module.forward).parameters.values()
        names = [each.name for each in parameters if each.kind in _POSITIONAL]
        if position < len(names):
            return names[position]
    return f"input {position}"


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _named_outputs(output: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(output, Mapping):
        yield from ((str(name), value) for name, value in output.items())
    elif isinstance(output, (tuple, list)) and len(output) > 1:
        names = getattr(output, "_fields", [f"output {i}" for i in range(len(output))])
        yield from zip(names, output, strict=True)
    else:
        yield "output", output


def _function_name(func: Any) -> str:
    name = str(resolve_name(func) or getattr(func, "__name__", None) or "function")
    name = name.removesuffix(".__get__")
    return name.rpartition(".")[2]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in containers; other objects are not searched."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)


def _reads_no_values(func: Any) -> bool:
    """Whether an operator reads only metadata of its tensors, as ``zeros_like`` does."""
    name = str(getattr(func, "_overloadpacket", func)).removeprefix("aten.")
    return name.startswith("new_") or name.endswith("_like")


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes to."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            is_given = position < len(args) and not argument.kwarg_only
            yield from _tensors(args[position] if is_given else kwargs.get(argument.name))
