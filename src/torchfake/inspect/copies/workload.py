"""What is run and where: a module, its inputs, a device; and a fake copy of them that can be run.

Input: a module (fake, deferred or real), inputs, a device. Output: a :class:`Workload`, and from it
a :class:`FakeCopy`, whose tensors are all fake and not shared. Invariant: the user's module and
inputs are never run, written or recorded on.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchfake._core import gpu_profiles
from torchfake._core.gpu_profiles import AlikeGpus, CudaProfile
from torchfake._torch.contexts import Together
from torchfake._torch.distributed.dtensors import is_fsdp_module
from torchfake.errors import DeviceError, InputsError
from torchfake.fake import parameters_and_buffers, parse_known_device
from torchfake.inspect.contents.described import described_format
from torchfake.inspect.copies.arguments import ArgumentCopies, held_by_arguments
from torchfake.inspect.copies.balanced_routing import BalancedRouting
from torchfake.inspect.records.messages import one_line
from torchfake.observe import (
    Answer,
    Answerer,
    AnswerFunction,
    FakeCopies,
    mode_of_copies,
    observing,
    tensors_held_by,
)

TYPICAL = "typical"
"""The name of the answers of a healthy run, in which experts get equally many tokens."""


@dataclass(frozen=True)
class Workload:
    """What is run, and where."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device | None = None  # the device of all tensors; None: each tensor's own
    gpu: CudaProfile | None = None  # the profile of CUDA devices; None: torchfake's default
    answer: str | AnswerFunction | None = None  # supplies unknown values
    program: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
    """In place of a module: a function that performs a step, and its arguments. `args` are then the
    tensors that the function refers to."""
    alike: AlikeGpus | None = field(default=None, compare=False)
    """The GPU, and others that a run may stand for: a run leaves those for which it does."""
    is_balanced: bool = False
    """Whether experts are assumed to get equally many tokens; typical answers imply it."""
    dtypes: Mapping[torch.dtype, int] = field(default_factory=dict, compare=False)
    """Bytes of parameters by dtype, of a module that was built for the run and is not kept."""
    other_format: str = field(default="", compare=False)
    """Of such a module, the format in its config that its weights do not have."""
    beside_text: str = field(default="", compare=False)
    """Of such a module, what it takes beside text."""

    def of_unkept(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Workload:
        """The workload of a module that is not kept, and inputs."""
        dtypes, name = bytes_by_dtype(module), described_format(module)
        beside = taken_beside_text(module)
        return replace(
            self, args=args, kwargs=kwargs, dtypes=dtypes, other_format=name, beside_text=beside
        )

    def fake_copy(self, loss: Any = None) -> FakeCopy:
        """A fake copy of the module and of the inputs; small inputs and buffers keep their values.

        Args:
            loss: a function of the output, which may refer to tensors, such as labels.

        Raises:
            InputsError: if the module cannot be copied.
        """
        if any(map(is_fsdp_module, self.module.modules())):
            raise InputsError(
                f"{type(self.module).__name__} is sharded by FSDP2, and cannot be copied: call "
                "this before it is sharded, or let torchfake.plan build, shard and run it"
            )
        _check_not_scripted(self.module)
        with self.mode():
            copies = FakeCopies(self.device, known=True)
            try:
                module = copies.of_module(self.module)
            except Exception as error:
                name = type(self.module).__name__
                raise InputsError(
                    f"{name} cannot be copied, so it cannot be run on fakes ({one_line(error)}): "
                    "remove what copy.deepcopy refuses"
                ) from error
            made, modules = dict(module.named_modules()), {}
            for name, child in self.module.named_modules():
                if name in made:
                    modules[id(child)] = made[name]
            arguments = ArgumentCopies(copies, memo=modules)
            args, kwargs = arguments.of(self.args), arguments.of(dict(self.kwargs))
            of_loss: tuple[torch.Tensor, ...] = ()
            if loss is not None:
                known = {*copies.by_tensor}
                loss = arguments.of_function(loss)
                made_now = (value for key, value in copies.by_tensor.items() if key not in known)
                of_loss = tuple(value for value in made_now if isinstance(value, torch.Tensor))
        parameters = {}  # without buffers, which may be replaced
        for parameter in self.module.parameters():
            parameters[id(parameter)] = copies.by_tensor[id(parameter)]
        return FakeCopy(
            module, args, kwargs, self, parameters, Answerer(self.answer), loss, of_loss
        )

    def mode(self, answerer: Answerer | None = None) -> Together:
        """A fake mode with all devices of the workload, in which autograd is enabled and autocast
        disabled, regardless of the caller's settings.
        """
        answerer, devices = answerer or Answerer(self.answer), self.cuda_devices()
        num_gpus = 1 + max((device.index or 0 for device in devices), default=-1)
        gpu = (self.alike or AlikeGpus(self.profile)) if devices else None
        mode = mode_of_copies(answerer, gpu, num_gpus)
        is_balanced = self.is_balanced or answerer.name == TYPICAL
        return Together(mode, observing(BalancedRouting())) if is_balanced else mode

    @property
    def profile(self) -> CudaProfile:
        """The profile of the workload's CUDA devices."""
        return self.gpu or gpu_profiles.PROFILES[gpu_profiles.DEFAULT_PROFILE]

    @property
    def held_by_inputs(self) -> list[torch.Tensor]:
        """The tensors that the inputs hold."""
        return held_by_arguments((self.args, dict(self.kwargs)))

    def cuda_devices(self) -> set[torch.device]:
        """The CUDA devices that the run uses."""
        if self.device is not None:
            return {self.device} if self.device.type == "cuda" else set()
        found = set()
        for tensor in (*parameters_and_buffers(self.module), *self.held_by_inputs):
            if tensor.device.type == "cuda":
                found.add(tensor.device)
        return found


@dataclass(frozen=True)
class FakeCopy:
    """A fake copy of a module and of its inputs."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    workload: Workload  # the original
    by_tensor: dict[int, Any]  # the copy of each original parameter, by the original's id
    answerer: Answerer  # supplies unknown values
    loss: Any = None  # the function of the output, which refers to copies
    of_loss: tuple[torch.Tensor, ...] = ()  # the copies that it refers to

    @property
    def inputs(self) -> list[Any] | dict[str, Any]:
        """The module's arguments, by position or by name."""
        return [*self.args] if self.args else self.kwargs

    def mode(self) -> Together:
        """The mode to run the copy in."""
        return self.workload.mode(self.answerer)

    @property
    def held_by_inputs(self) -> list[torch.Tensor]:
        """The tensors that the inputs hold, and those that the loss refers to."""
        return held_by_arguments((self.args, self.kwargs, self.of_loss))

    @property
    def device(self) -> torch.device:
        """The device that the copy runs on: the requested one, otherwise the one with most bytes of
        the module, or if the module has no tensors, of the inputs.
        """
        return self.workload.device or main_device(self.module, self.held_by_inputs)

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answers given to questions about unknown values so far."""
        return tuple(self.answerer.answers)

    def __call__(self) -> Any:
        """The output of the module for the inputs."""
        return self.module(*self.args, **self.kwargs)


_BESIDE_TEXT = {"vision_config": "images", "audio_config": "audio"}
"""What a part of a model takes, by its entry in the config."""


def taken_beside_text(module: nn.Module) -> str:
    """What a model takes beside text, by its config: ``images``, ``images or audio``, or ""."""
    config = getattr(module, "config", None)
    parts = (what for key, what in _BESIDE_TEXT.items() if getattr(config, key, None) is not None)
    return " or ".join(parts)


def workload_of(
    module: nn.Module,
    inputs: tuple[Any, ...],
    *,
    device: torch.device | str | int | None = None,
    gpu: str | CudaProfile | AlikeGpus | None = None,
    answer: str | AnswerFunction | None = None,
) -> Workload:
    """The workload that the arguments of a public function describe.

    Args:
        module: any module.
        inputs: positional arguments of its forward; a single mapping, such as the output of a
            tokenizer, is used as keyword arguments, except for a TensorDict.
        device: the device to run on.
        gpu: a profile of that device, or its name; implies ``device="cuda"`` if no device is given.
            Or several, for which a run on the first may stand.
        answer: supplies unknown values: a function, or the name of a predefined one.

    Raises:
        TypeError: if `module` is not a module, or `answer` is not a function.
        ValueError: if `answer` is an unknown name.
        DeviceError: if there is no such profile, or fakes cannot be on `device`.
    """
    Answerer(answer)  # raises if `answer` is invalid
    check_module(module)
    if gpu is not None:
        device = "cuda" if device is None else device
    alike = gpu if isinstance(gpu, AlikeGpus) else None
    if isinstance(gpu, AlikeGpus):
        gpu = gpu.profiles[0]
    profile = None if gpu is None else gpu_profiles.profile(gpu)
    target = None if device is None else _checked_device(device)
    if len(inputs) == 1 and isinstance(inputs[0], Mapping) and not _is_tensordict(inputs[0]):
        return Workload(module, (), inputs[0], target, profile, answer, alike=alike)
    return Workload(module, inputs, {}, target, profile, answer, alike=alike)


def _is_tensordict(value: Mapping[Any, Any]) -> bool:
    """Whether a mapping is a TensorDict, which is an argument itself, as a tensor is."""
    return hasattr(type(value), "batch_size")


def _check_not_scripted(module: nn.Module) -> None:
    """Refuse TorchScript modules, whose parameters are kept in C++ and would stay real."""
    for name, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise InputsError(
                f"{name or 'the module'} is TorchScript, of which there is no fake copy: give the "
                "module as it was before torch.jit.script or torch.jit.trace"
            )


def check_module(value: object, command: str = "inspect", words: Sequence[str] = ()) -> None:
    """Refuse a value that is not a module.

    Args:
        value: what should be one.
        command: the command that answers the question for the name of a model.
        words: the options of the command.

    Raises:
        TypeError: if `value` is not a module; the message says how to get one from it.
    """
    if not isinstance(value, nn.Module):
        raise TypeError(f"a torch.nn.Module is needed, not {kind_of(value, command, words)}")


def kind_of(value: Any, command: str = "inspect", words: Sequence[str] = ()) -> str:
    """The kind of `value`, which is no module, for an error message that says how to get one.

    Args:
        value: what was given in place of a module.
        command: the command that answers the question for a name.
        words: the options of the command.
    """
    if isinstance(value, type):
        return f"the class {value.__name__}: create an instance, in fake_mode() if it is large"
    if isinstance(value, str):
        target = f"transformers:{value}" if value.isidentifier() else value
        line = shlex.join(["torchfake", command, target, *words])
        built = f"torchfake.inspect.build(torchfake.inspect.resolve({target!r})).module"
        return f"the name {value!r}: build it, {built}, or on the command line {line}"
    if hasattr(value, "model_type"):  # a config of transformers
        return (
            f"a {type(value).__name__}: build the model, with fake_mode(): model = "
            "AutoModelForCausalLM.from_config(config)"
        )
    return f"a {type(value).__name__}"


def _checked_device(device: torch.device | str | int) -> torch.device:
    """`device` as a torch.device, with the index that tensors report."""
    try:
        return parse_known_device(device)
    except RuntimeError as error:
        raise DeviceError(f"there is no device {device!r}; give cpu, cuda or cuda:N") from error


def bytes_by_dtype(module: nn.Module) -> dict[torch.dtype, int]:
    """Bytes of the parameters of a module by dtype."""
    found: dict[torch.dtype, int] = {}
    for parameter in module.parameters():
        found[parameter.dtype] = found.get(parameter.dtype, 0) + parameter.nbytes
    return found


def main_device(module: nn.Module, others: Iterable[torch.Tensor]) -> torch.device:
    """The device with most bytes of a module, or if the module has no tensors, of `others`."""
    sizes: dict[torch.device, int] = {}
    for tensor in [*parameters_and_buffers(module)] or others:
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.numel() * tensor.element_size()
    return max(sizes, key=sizes.__getitem__, default=torch.device("cpu"))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in containers and objects, each once, in order."""
    found: dict[int, torch.Tensor] = {}
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            found[id(leaf)] = leaf
        elif getattr(leaf, "__dict__", None):  # an object that torch's pytree does not know
            for tensor in tensors_held_by(leaf, set()):
                found[id(tensor)] = tensor
    return list(found.values())
