"""The public functions of fake tensors: ``fake_mode``, ``is_fake``, ``meta_like``, ``fake_like``.

Input: the user's calls. Output: modes entered and left; fake copies of real tensors and modules;
descriptions of fakes. Invariant: however a mode is left, torch is restored to its state on entry,
except for replacements that living fakes need (``_patches/while_fakes_live``).
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from torchfake import _dispatch
from torchfake._core import arguments, devices, gpu_profiles, modes
from torchfake._core.gpu_profiles import AlikeGpus, CudaProfile
from torchfake._core.metadata import DEFERRED, PLAIN
from torchfake._core.modes import FakeAccelerator, ModeState
from torchfake._operators.interpreter import meta_counterpart
from torchfake._patches import entry
from torchfake._patches import imports as _imports  # noqa: F401  adds its patches
from torchfake._patches import threads as _threads  # noqa: F401  adds its patches
from torchfake._patches.torchscript import (  # noqa: F401  add their patches
    files,
    folding,
    scripts,
    traces,
)
from torchfake._tensor import classes
from torchfake._tensor import pickling as _pickling  # noqa: F401  names in pickles
from torchfake._tensor.copies import FakeCopies, is_or_holds_fake
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatcher
from torchfake._torch.contexts import Restoring
from torchfake._unknown_values.answer_log import Answers
from torchfake._unknown_values.answerers import Answerer, AnswerFunction, answering_by
from torchfake.errors import (
    DeviceError,
    NotFakeError,
)

_Mode = TypeVar("_Mode", bound="fake_mode")
_F = TypeVar("_F", bound=Callable[..., Any])


class fake_mode:
    """Context manager and decorator in which every new tensor is fake: metadata without data.

    A mode can be entered again while it is active. It is active on this thread, on threads started
    inside it, and for work submitted to thread pools inside it. Fakes outlive it. Modes must be
    exited in reverse order, on the thread that entered them: without an error in flight, any other
    ``__exit__`` raises RuntimeError and changes nothing. Exiting restores torch, also after an
    interrupt; a mode whose object is deleted without being exited ends then.

    Args:
        fake_cuda: ``False``: the CUDA devices of this machine. ``True``: one fake CUDA device; an
            int: that number of them; a name from :func:`torchfake.profiles`, such as
            ``"h100-80gb"``, or a :class:`CudaProfile`: one device of that type, which
            ``torch.cuda`` then describes.
        fake_device: the type of another accelerator to fake, such as ``"mps"`` or
            ``"xpu"``, or the name of a privateuse1 backend. ``"cuda"`` is ``fake_cuda=True``.
        num_devices: the number of devices of that type.
        answer: supplies unknown values: ``"typical"``, or a function that takes a
            :class:`torchfake.Question` and returns a number, a tensor, or None to decline. Without
            it, reading an unknown value raises UnknownValueError. The attribute ``answers`` lists
            the answers given.

    Raises:
        DeviceError: if the profile or device type is unknown, or there are too many devices.
        ValueError: if `answer` is a string other than ``"typical"``.
        AnswerError: when a value is read, if the answer is invalid.

    >>> with fake_mode(fake_cuda=True):
    ...     weight = torch.empty(4096, 4096, device="cuda")
    >>> weight
    tensor(..., device='cuda:0', size=(4096, 4096), fake=True)
    """

    _mark = PLAIN

    def __init__(
        self,
        *,
        fake_cuda: bool | int | str | CudaProfile | FakeAccelerator = False,
        fake_device: str | None = None,
        num_devices: int = 1,
        answer: str | AnswerFunction | None = None,
    ) -> None:
        # created here, so that the constructor refuses a wrong argument
        self._answerer = Answerer(answer)
        is_one = type(num_devices) is int and num_devices == 1
        is_plain = fake_cuda is False and fake_device is None and is_one
        self._machine = None if is_plain else _fake_machine(fake_cuda, fake_device, num_devices)

    def __enter__(self: _Mode) -> _Mode:
        machine = None if self._machine is None else self._machine.unused()
        state = ModeState(accelerator=machine, mark=self._mark)
        state.answerers = (self._answerer,)
        if self._mark:
            modes.recording.is_used = True
        dispatch = _dispatch.DeferredDispatch() if self._mark else _dispatch.FakeDispatch()
        entry.enter(self, state, dispatch)
        return self

    __exit__ = entry.ModeExit()

    @property
    def answers(self) -> Answers:
        """The reads of unknown values that were answered in this mode."""
        return self._answerer.answers

    def __call__(self, function: _F) -> _F:
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        if is_async or inspect.isgeneratorfunction(function):
            kind = "async" if is_async else "generator"
            name = type(self).__name__
            raise TypeError(
                f"{name} cannot decorate the {kind} function {function.__name__}: its body runs "
                f"after the call has returned. Enter the mode inside it, `with {name}():`"
            )

        @functools.wraps(function)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with copy.copy(self):
                return function(*args, **kwargs)

        return decorated  # type: ignore[return-value]


class _RecordingMode(fake_mode):
    """The mode that is entered when the class of a deferred fake is called outside all modes."""

    _mark = DEFERRED


classes.modes_by_kind.update({False: fake_mode, True: _RecordingMode})


def answering(answer: str | AnswerFunction) -> Restoring:
    """Context manager that supplies unknown values when they are read.

    Like ``fake_mode(answer=...)``, but usable inside and outside modes. The innermost context or
    mode is asked first; if it declines, the next outer one is asked.

    Args:
        answer: ``"typical"``, or a function that takes a :class:`torchfake.Question` and returns a
            number, a tensor, or None to decline.

    Returns:
        The context manager. The target of ``as`` is its :class:`torchfake.Answers`, the list of
        answers given.

    >>> with fake_mode():
    ...     loss = torch.nn.Linear(100, 1)(torch.randn(8, 100)).mean()
    >>> with answering(lambda question: 0.5) as answers:
    ...     loss.item()
    0.5
    >>> len(answers), answers[0].asked_by, answers[0].operator
    (1, 'item()', 'aten.mean.default')
    """
    return answering_by(Answerer(answer))


def _fake_machine(
    fake_cuda: bool | int | str | CudaProfile | FakeAccelerator,
    fake_device: str | None,
    num_devices: int,
) -> FakeAccelerator | None:
    """The fake devices that the arguments of ``fake_mode`` describe; None if there are none."""
    if isinstance(num_devices, bool) or not isinstance(num_devices, int):
        raise TypeError(f"num_devices is a number of devices, not {num_devices!r}")
    if fake_device is None:
        if num_devices != 1:
            raise TypeError("num_devices is for fake_device; for CUDA give fake_cuda=N")
        return _fake_cuda_machine(fake_cuda)
    if fake_cuda is not False:
        raise TypeError("a mode has fake devices of one type: give fake_cuda or fake_device")
    if not isinstance(fake_device, str):
        raise TypeError(f'fake_device is a type of device, such as "mps", not {fake_device!r}')
    try:
        kind = devices.kind_of(fake_device)
    except DeviceError as error:
        raise DeviceError(f"fake_device={fake_device!r}: {error}") from None
    if not 1 <= num_devices <= kind.max_devices:
        raise DeviceError(
            f"num_devices={num_devices}: a mode has 1 to {kind.max_devices} {fake_device} device(s)"
        )
    if kind.has_profiles:
        return _fake_cuda_machine(num_devices)
    return FakeAccelerator(fake_device, num_devices)


def _fake_cuda_machine(
    fake_cuda: bool | int | str | CudaProfile | FakeAccelerator,
) -> FakeAccelerator | None:
    if isinstance(fake_cuda, FakeAccelerator):  # internal: several devices of a profile
        return fake_cuda
    if isinstance(fake_cuda, (str, CudaProfile)):
        gpu = gpu_profiles.profile(fake_cuda, "fake_cuda")
        return FakeAccelerator("cuda", 1, AlikeGpus(gpu))
    if not isinstance(fake_cuda, int):
        raise TypeError(
            "fake_cuda is True or False, a number of devices, or a profile or its name, not "
            f"{fake_cuda!r}"
        )
    num_devices = int(fake_cuda)
    if not 0 <= num_devices <= devices.MAX_DEVICES:
        raise DeviceError(
            f"fake_cuda={fake_cuda!r}: a mode has 0 to {devices.MAX_DEVICES} CUDA devices"
        )
    if not num_devices:
        return None
    profile = gpu_profiles.profile(gpu_profiles.DEFAULT_PROFILE)
    return FakeAccelerator("cuda", num_devices, AlikeGpus(profile))


def is_fake(obj: torch.Tensor | torch.nn.Module) -> bool:
    """Whether a tensor is fake, or all parameters and buffers of a module are.

    A module that has both fake and real tensors is not fake; neither is a module without tensors.

    Args:
        obj: a tensor, parameter or buffer of any shape, or a module. A tensor that wraps others,
            such as a quantized tensor or a DTensor, is fake if one of them is.

    Raises:
        TypeError: for anything else.

    >>> is_fake(torch.ones(3))
    False
    """
    if isinstance(obj, torch.Tensor):
        return is_or_holds_fake(obj)
    if isinstance(obj, torch.nn.Module):
        return {is_or_holds_fake(tensor) for tensor in parameters_and_buffers(obj)} == {True}
    raise TypeError(f"is_fake takes a tensor or a module, not {type(obj).__name__}")


def parameters_and_buffers(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The parameters and buffers of a module."""
    yield from module.parameters()
    yield from module.buffers()


_T = TypeVar("_T", torch.Tensor, torch.nn.Module)


def meta_like(fake: _T) -> _T:
    """Return a plain meta tensor with the shape, strides, storage offset and dtype of `fake`, or a
    copy of a module with such tensors.

    A tensor is detached from the autograd graph, and is not a parameter. The parameters of a module
    stay parameters, and tensors that are one object in the module are one in the copy.

    Args:
        fake: a fake tensor of any shape, or a module whose parameters and buffers are fake.

    Raises:
        NotFakeError: (a ValueError) if `fake` is not fake.

    >>> with fake_mode():
    ...     weight = torch.empty(3, 4).t()
    >>> meta_like(weight).stride(), meta_like(weight).device
    ((1, 4), device(type='meta'))
    """
    if isinstance(fake, torch.nn.Module):
        return _meta_copy(fake)
    if not isinstance(fake, FakeTensor):
        raise NotFakeError(f"meta_like takes a fake tensor, not {_kind_of(fake)}; see is_fake()")
    with dispatcher.in_fake_slot(None):
        return meta_counterpart(fake)


def _meta_copy(module: torch.nn.Module) -> torch.nn.Module:
    copies: dict[int, Any] = {}
    for tensor in parameters_and_buffers(module):
        if not isinstance(tensor, FakeTensor):
            raise NotFakeError(
                f"meta_like takes a module of fake tensors, and one in {type(module).__name__} is "
                f"{_kind_of(tensor)}; see is_fake() and fake_like()"
            )
        with dispatcher.in_fake_slot(None):
            copied = meta_counterpart(tensor)
            if isinstance(tensor, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, tensor.requires_grad)
        copies[id(tensor)] = copied
    with dispatcher.in_fake_slot(None):
        return copy.deepcopy(module, copies)


def _kind_of(obj: Any) -> str:
    if isinstance(obj, torch.Tensor):
        return f"a real tensor on {obj.device}"
    return f"a {type(obj).__name__}"


def fake_like(real: _T, *, device: torch.device | str | int | None = None) -> _T:
    """Return a fake copy of a real tensor or module, with unknown values.

    The copy of a module has fake copies of all its tensors. Tensors of the module that share
    memory, or are the same object, also do so in the copy. Attributes of parameters, hooks and
    ``training`` are kept.

    Args:
        real: a tensor of any shape, or a module.
        device: the device of the copy, by default that of `real`. The machine need not have it.

    Raises:
        TypeError: if `real` is neither a tensor nor a module.
        DeviceError: if fakes cannot be on `device`.

    >>> fake_like(torch.nn.Linear(2, 3), device="cuda:1").bias.device
    device(type='cuda', index=1)
    """
    target = None if device is None else parse_device(device)
    if isinstance(real, torch.Tensor):
        return FakeCopies(target).of(real)  # type: ignore[no-any-return]
    if isinstance(real, torch.nn.Module):
        return FakeCopies(target).of_module(real)
    raise TypeError(f"fake_like takes a tensor or a module, not {type(real).__name__}")


def parse_device(device: torch.device | str | int) -> torch.device:
    """Parse a device, which this machine or mode need not have."""
    return devices.decode(devices.carrier(arguments.named_device(device, "device")))


def parse_known_device(device: torch.device | str | int) -> torch.device:
    """Parse a device for estimates of memory, which are possible for the CPU and CUDA only.

    Raises:
        DeviceError: if the device is another accelerator.
    """
    parsed = parse_device(device)
    if parsed.type not in ("cpu", "cuda"):
        raise DeviceError(
            f"device={device!r}: memory can be estimated for cpu and cuda only; give "
            "cpu, cuda or cuda:N"
        )
    return parsed
