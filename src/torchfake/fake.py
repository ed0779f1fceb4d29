"""The public functions of fake tensors: ``fake_mode``, ``is_fake``, ``meta_like``, ``fake_like``.

Input: the user's calls. Output: modes entered and left; fakes made from real tensors and modules,
and described. Invariant: however a mode is left, torch is as it was when the mode was entered.
Called by: the user, through :mod:`torchfake`; ``deferred``, ``_tracing``, ``inspect`` and
``distributed``, which make fake copies of modules.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch

from torchfake import _arguments, _dispatch
from torchfake._answers.answers import Answers
from torchfake._answers.asking import Answerer, AnswerFunction, answering_by
from torchfake._contexts import Restoring
from torchfake._core import devices, gpu_profiles, modes
from torchfake._core.gpu_profiles import CudaProfile
from torchfake._core.metadata import PLAIN
from torchfake._core.modes import FakeCuda, ModeState
from torchfake._fake_copies import FakeCopies, is_or_holds_fake
from torchfake._operators.interpreter import meta_counterpart
from torchfake._patches import entry
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatcher
from torchfake.errors import (
    DeviceError,
    NotFakeError,
)

_Mode = TypeVar("_Mode", bound="fake_mode")
_F = TypeVar("_F", bound=Callable[..., Any])


class fake_mode:
    """A context in which every tensor that is made is fake: it has metadata and no data.

    Works as a context manager and as a decorator, and can be entered again inside itself. It holds
    for this thread, for threads that are started inside it, and for work that is handed to thread
    pools inside it. Fakes live on after it. Modes are left in the reverse order of their
    entries, on the thread that entered them: any other ``__exit__`` is a RuntimeError, and changes
    nothing. Whatever is interrupted, torch is as before once the mode has been left; a mode whose
    object is dropped without being left ends then.

    Args:
        fake_cuda: ``False``: CUDA is what this machine has. ``True``: one CUDA device that is not
            there; an int: so many; a name from :func:`torchfake.profiles`, such as
            ``"h100-80gb"``, or a :class:`CudaProfile`: one device of that kind, which
            ``torch.cuda`` then describes.

        answer: who answers questions about values that do not exist: ``"typical"``, or a function
            that takes a :class:`torchfake.Question` and returns a number, a tensor, or None to
            decline. Without it such a question raises UnknownValueError. What was answered is
            listed in ``answers``.

    Raises:
        DeviceError: if `fake_cuda` is no profile's name or no possible number of devices.
        ValueError: if `answer` is a text and no name of answers.
        AnswerError: by the program that asks, for an answer that is none.

    >>> with fake_mode(fake_cuda=True):
    ...     weight = torch.empty(4096, 4096, device="cuda")
    >>> weight
    tensor(..., device='cuda:0', size=(4096, 4096), fake=True)
    """

    _mark = PLAIN

    def __init__(
        self,
        *,
        fake_cuda: bool | int | str | CudaProfile | FakeCuda = False,
        answer: str | AnswerFunction | None = None,
    ) -> None:
        self._fake_cuda = fake_cuda
        self._answerer = Answerer(answer)
        _fake_cuda_machine(fake_cuda)  # raise here for a wrong argument, not on entry

    def __enter__(self: _Mode) -> _Mode:
        state = ModeState(cuda=_fake_cuda_machine(self._fake_cuda), mark=self._mark)
        state.answerers = (self._answerer,)
        if self._mark:
            modes.recording.is_used = True
        dispatch = _dispatch.DeferredDispatch() if self._mark else _dispatch.FakeDispatch()
        entry.enter(self, state, dispatch)
        return self

    __exit__ = entry.ModeExit()

    @property
    def answers(self) -> Answers:
        """The questions about values that do not exist which were answered in this mode."""
        return self._answerer.answers

    def __call__(self, function: _F) -> _F:
        if inspect.isgeneratorfunction(function):
            raise TypeError(
                f"{type(self).__name__} cannot decorate the generator function "
                f"{function.__name__}: its body runs after the call has "
                "returned. Enter the mode inside it"
            )

        @functools.wraps(function)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            mode = type(self)(fake_cuda=self._fake_cuda)
            mode._answerer = self._answerer
            with mode:
                return function(*args, **kwargs)

        return decorated  # type: ignore[return-value]


def answering(answer: str | AnswerFunction) -> Restoring:
    """A context in which questions about values that do not exist are answered.

    As ``fake_mode(answer=...)``, inside a mode or outside, where fakes live on. Its answers come
    before those of the contexts and modes around it, which are asked where it declines.

    Args:
        answer: ``"typical"``, or a function that takes a :class:`torchfake.Question` and returns a
            number, a tensor, or None to decline.

    Returns:
        The context; ``as`` names its :class:`torchfake.Answers`, a list of what was answered.

    >>> with fake_mode():
    ...     loss = torch.nn.Linear(100, 1)(torch.randn(8, 100)).mean()
    >>> with answering(lambda question: 0.5) as answers:
    ...     loss.item()
    0.5
    >>> len(answers), answers[0].asked_by, answers[0].operator
    (1, 'item()', 'aten.mean.default')
    """
    return answering_by(Answerer(answer))


def _fake_cuda_machine(fake_cuda: bool | int | str | CudaProfile | FakeCuda) -> FakeCuda | None:
    if isinstance(fake_cuda, FakeCuda):  # internal: several devices of a profile
        return replace(fake_cuda)
    if isinstance(fake_cuda, (str, CudaProfile)):
        return FakeCuda(profile=gpu_profiles.profile(fake_cuda, "fake_cuda"), num_devices=1)
    if not isinstance(fake_cuda, int):
        raise TypeError(
            "fake_cuda is True or False, a number of devices, or a profile or its name, not "
            f"{fake_cuda!r}"
        )
    num_devices = int(fake_cuda)
    if not 0 <= num_devices <= devices.MAX_CUDA_DEVICES:
        raise DeviceError(
            f"fake_cuda={fake_cuda!r}: a mode has 0 to {devices.MAX_CUDA_DEVICES} CUDA devices"
        )
    return (
        FakeCuda(gpu_profiles.profile(gpu_profiles.DEFAULT_PROFILE), num_devices)
        if num_devices
        else None
    )


def is_fake(obj: torch.Tensor | torch.nn.Module) -> bool:
    """Whether a tensor is fake, or all parameters and buffers of a module are.

    A module with both fake and real tensors is not fake, nor is one without tensors.

    Args:
        obj: a tensor, parameter or buffer of any shape, or a module. A tensor that wraps others,
            as a quantized one or a DTensor does, is fake if one of these is.

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


def meta_like(fake: torch.Tensor) -> torch.Tensor:
    """A plain meta tensor with the shape, strides, storage offset and dtype of `fake`.

    It is not in the autograd graph, and no parameter.

    Args:
        fake: a fake tensor of any shape.

    Raises:
        NotFakeError: (a ValueError) if `fake` is not fake.

    >>> with fake_mode():
    ...     weight = torch.empty(3, 4).t()
    >>> meta_like(weight).stride(), meta_like(weight).device
    ((1, 4), device(type='meta'))
    """
    if not isinstance(fake, FakeTensor):
        raise NotFakeError(f"meta_like takes a fake tensor, not {_kind_of(fake)}; see is_fake()")
    with dispatcher.in_fake_slot(None):
        return meta_counterpart(fake)


def _kind_of(obj: Any) -> str:
    if isinstance(obj, torch.Tensor):
        return f"a real tensor on {obj.device}"
    return f"a {type(obj).__name__}"


_T = TypeVar("_T", torch.Tensor, torch.nn.Module)


def fake_like(real: _T, *, device: torch.device | str | int | None = None) -> _T:
    """The fake copy of a real tensor or module, with unknown values.

    The copy of a module has fake copies of all its tensors. Tensors that share memory, or are one
    object, in the module do so in the copy. Attributes of parameters, hooks and ``training`` are
    kept.

    Args:
        real: a tensor of any shape, or a module.
        device: the device of the copy; that of `real` if not given. The machine need not have it.

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
    """The device that is named; this machine or mode need not have it."""
    return devices.decode(devices.carrier(_arguments.named_device(device, "device")))
