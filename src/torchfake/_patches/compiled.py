"""torch.compile: compiled functions run uncompiled in a mode, and wherever they meet a fake.

Input: functions and modules compiled by torch.compile, before a mode, in it or after it. Output:
the results of the functions themselves. Invariant: nothing is compiled in a mode or for fakes, and
code compiled for real tensors is reused for real tensors; on other threads and without fakes
torch.compile works as usual.

In a mode the tracer is not asked about any frame, as under ``torch.compiler.set_stance`` with
"force_eager", which is not used because it applies to the whole process. After the mode, a frame
that reaches a fake runs uncompiled.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from torchfake._core import modes
from torchfake._operators.higher_order import kernels
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch.compiler import frames, higher_order
from torchfake._torch.compiler.python_functions import Replacement

_MAX_DEPTH = 8  # of containers in containers
_BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)


def patches_of_tracer() -> list[Replacement]:
    """The replacements in the tracer, which has been imported."""
    if not _state.is_skipping:
        kernels.register_kernels()  # also for the operators of the tracer
        frames.skip(_untraced_modules())
        _state.is_skipping = True
    return frames.run_as_they_are(_has_fake, _in_a_mode, modes.thread)


class _State:
    is_skipping = False  # the tracer has been told of modules of torchfake


_state = _State()


def patches_of_attention() -> list[Replacement]:
    """The replacement by which ``flex_attention`` does not warn about the scores of fakes."""
    if not higher_order.UNFUSED_ATTENTION.holds():
        return []
    return [
        higher_order.no_warning_of_unfused_attention(lambda query: isinstance(query, FakeTensor))
    ]


_WITH_REPLACEMENTS = (
    "accelerators", "autocast", "device_arguments", "patch", "sources", "wrapper_devices",
)  # fmt: skip
_TRACED = (
    "_core.modes",
    *(f"_patches.{name}" for name in _WITH_REPLACEMENTS),
    "_tracing.meta_patcher",
)
"""Modules that the tracer looks into: replacements and their test for a mode, traced on a thread
without a mode while another is in one; and methods that ``MetaAwareMethodsPatcher`` replaces."""
_DIVIDED = ("_core", "_patches", "_tracing")


def _untraced_modules() -> Iterator[str]:
    """The names of torchfake's modules that the tracer must not look into."""
    package = __name__.split(".")[0]
    root = sys.modules[package].__path__[0]
    for parent in ("", *_DIVIDED):
        prefix = parent and f"{parent}."
        for module in pkgutil.iter_modules([os.path.join(root, parent)], prefix):
            if module.name not in (*_DIVIDED, *_TRACED):
                yield f"{package}.{module.name}"


def _in_a_mode() -> bool:
    return modes.current() is not None


def _has_fake(variables: dict[str, Any]) -> bool:
    """Whether this thread is in a mode, or a frame with these variables reaches a fake."""
    if _in_a_mode():
        return True
    seen: set[int] = set()
    return any(_reaches_fake(value, seen, _MAX_DEPTH) for value in variables.values())


def _reaches_fake(value: Any, seen: set[int], depth: int) -> bool:
    if isinstance(value, FakeTensor):
        return True
    if id(value) in seen or not depth:
        return False
    seen.add(id(value))
    return any(_reaches_fake(part, seen, depth - 1) for part in _parts_of(value))


def _parts_of(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        is_initialized = "_modules" in vars(value)  # the frame may be its constructor
        return (*value.parameters(), *value.buffers()) if is_initialized else ()
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    # Attributes of other objects are not read: proxies have any, or are half constructed.
    return (value.__self__,) if isinstance(value, _BOUND) else ()
