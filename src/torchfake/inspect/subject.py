"""A module and inputs for it, ready to be run without touching either.

Enters: a module (fake, deferred or real), inputs, a device. Leaves: a :class:`Twin`, all fake and
nobody else's. Invariant: what was given is never run, written or recorded on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchfake import _cuda
from torchfake._cuda import CudaProfile
from torchfake._private_distributed import is_fsdp
from torchfake._state import FakeCuda
from torchfake.errors import DeviceError, InputsError
from torchfake.fake import Twins, any_device, fake_mode
from torchfake.inspect.overrides import one_line


@dataclass(frozen=True)
class Subject:
    """What is to be run, and where."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device | None = None  # where all of it is to be; where it is, if None
    gpu: CudaProfile | None = None  # what a CUDA device is; torchfake's default, if None

    def twin(self) -> Twin:
        """A fake copy of the module and of the inputs; small inputs and buffers keep their values.

        Raises:
            InputsError: if the module cannot be copied.
        """
        if any(map(is_fsdp, self.module.modules())):
            raise InputsError(
                f"{type(self.module).__name__} is sharded by FSDP2, and cannot be run aside: ask "
                "before it is sharded, or have torchfake.plan build, shard and run it"
            )
        with self.mode():
            twins = Twins(self.device, known=True)
            try:
                module = twins.of_module(self.module)
            except Exception as error:
                name = type(self.module).__name__
                raise InputsError(
                    f"{name} cannot be copied, so it cannot be run aside ({one_line(error)}): "
                    "leave out what copy.deepcopy refuses"
                ) from error

            def made(value: Any) -> Any:
                return twins.of(value) if isinstance(value, torch.Tensor) else value

            args = pytree.tree_map(made, self.args)
            kwargs = {name: pytree.tree_map(made, value) for name, value in self.kwargs.items()}
        return Twin(module, args, kwargs, self, twins.by_tensor)

    def machine(self) -> FakeCuda | bool:
        """What ``fake_mode`` takes for a machine on which all of it can be."""
        num_devices = 1 + max((device.index or 0 for device in self.cuda_devices()), default=-1)
        return FakeCuda(self.profile, num_devices) if num_devices else False

    @contextlib.contextmanager
    def mode(self) -> Iterator[None]:
        """A fake mode, in which the caller's switches of autograd and autocast are at rest."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(fake_mode(fake_cuda=self.machine()))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            yield

    @property
    def profile(self) -> CudaProfile:
        """What a CUDA device is."""
        return self.gpu or _cuda.profile(_cuda.DEFAULT_PROFILE)

    def cuda_devices(self) -> set[torch.device]:
        """The CUDA devices that take part."""
        found = {t.device for t in (*self.module.parameters(), *self.module.buffers())}
        found |= {t.device for t in tensors_in((self.args, dict(self.kwargs)))}
        if self.device is not None:
            found = {self.device}
        return {device for device in found if device.type == "cuda"}


@dataclass(frozen=True)
class Twin:
    """A fake copy of a module and of its inputs."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    subject: Subject
    by_tensor: dict[int, Any]  # the copy of each original, by the original's id

    @property
    def inputs(self) -> list[Any] | dict[str, Any]:
        """What the module is given, by position or by name."""
        return [*self.args] if self.args else self.kwargs

    def mode(self) -> contextlib.AbstractContextManager[None]:
        """The mode to run it in."""
        return self.subject.mode()

    def __call__(self) -> Any:
        """What the module gives for the inputs."""
        return self.module(*self.args, **self.kwargs)


def subject_of(
    module: nn.Module,
    inputs: tuple[Any, ...],
    *,
    device: torch.device | str | int | None = None,
    gpu: str | CudaProfile | None = None,
) -> Subject:
    """The subject that the arguments of a public function name.

    Args:
        module: any module.
        inputs: what its forward takes by position; a lone mapping is taken as keyword arguments,
            as a tokenizer's output is.
        device: where it is to run.
        gpu: a profile of that device, or its name; means ``device="cuda"`` if none is given.

    Raises:
        TypeError: if `module` is not a module.
        DeviceError: if there is no such profile, or fakes cannot be on `device`.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"a torch.nn.Module is needed, not {_kind(module)}")
    if gpu is not None:
        device = "cuda" if device is None else device
    profile = None if gpu is None else _cuda.profile(gpu)
    on = None if device is None else _named(device)
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return Subject(module, kwargs=inputs[0], device=on, gpu=profile)
    return Subject(module, args=inputs, device=on, gpu=profile)


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}: make one of it, in fake_mode() if it is large"
    return f"a {type(value).__name__}"


def _named(device: torch.device | str | int) -> torch.device:
    """The device, with the index that tensors report."""
    try:
        return any_device(device)
    except RuntimeError as error:
        raise DeviceError(f"there is no device {device!r}; give cpu, cuda or cuda:N") from error


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in containers, dataclasses of transformers among them, each once, in order."""
    found = {id(leaf): leaf for leaf in _leaves(value) if isinstance(leaf, torch.Tensor)}
    return list(found.values())


def _leaves(value: Any) -> list[Any]:
    """Leaves as torch's pytree has them; an object that it does not know is looked into."""
    leaves: list[Any] = []
    for leaf in pytree.tree_leaves(value):
        held = getattr(leaf, "__dict__", None)
        if isinstance(leaf, (torch.Tensor, nn.Module, Callable)) or not held:  # type: ignore[arg-type]
            leaves.append(leaf)
        else:
            leaves.extend(pytree.tree_leaves(_held(leaf, set())))
    return leaves


def _held(value: Any, seen: set[int]) -> Any:
    """The tensors held by an object's attributes, however deep: a cache of keys and values."""
    if isinstance(value, torch.Tensor) or id(value) in seen:
        return value if isinstance(value, torch.Tensor) else None
    seen.add(id(value))
    if isinstance(value, Mapping):
        return [_held(item, seen) for item in value.values()]
    if isinstance(value, (list, tuple)):
        return [_held(item, seen) for item in value]
    if isinstance(value, (nn.Module, type)) or callable(value):
        return None
    return [_held(item, seen) for item in getattr(value, "__dict__", {}).values()]
