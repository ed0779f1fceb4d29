"""The one entrance of every operation on fakes.

Enters: what torch hands to ``__torch_dispatch__``, from a mode or from a fake. Leaves: the
result. Invariant: tensors of classes that are not ours have their own say first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchfake import _private, _state
from torchfake._handlers import HANDLERS
from torchfake._interpret import interpret
from torchfake._ops import plan_of
from torchfake._tensor import FakeTensor


def dispatch(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operator."""
    if torch.is_inference_mode_enabled() and _is_view_of_normal_tensor(func, args):
        with torch.inference_mode(False):
            return _run(func, types, args, kwargs)
    return _run(func, types, args, kwargs)


def _is_view_of_normal_tensor(func: Any, args: tuple[Any, ...]) -> bool:
    """A view in inference mode is an inference tensor if and only if its base is."""
    if not args or not isinstance(args[0], torch.Tensor) or args[0].is_inference():
        return False
    return plan_of(func).is_view


def _run(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for cls in types:
        own = cls.__torch_dispatch__
        if not issubclass(cls, FakeTensor) and own is not _private.disabled_torch_dispatch:
            return NotImplemented  # DTensor and the like come back with what they wrap
    handler = HANDLERS.get(func)
    if handler is not None:
        return handler(func, args, kwargs)
    return interpret(func, args, kwargs)


_state.dispatcher = dispatch


class FakeDispatch(TorchDispatchMode):
    """What sits in torch's FAKE slot while a mode is on, so that factories are seen too."""

    _mode_key = _private.FAKE_SLOT

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Stays below user modes, as torch's own fake mode does."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Never traced by torch.compile, so not wrapped for it: the wrapper costs 2 us a call."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return dispatch(func, types, args, kwargs or {})
