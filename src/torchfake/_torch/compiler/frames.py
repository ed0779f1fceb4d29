"""torch.compile: which frames it takes over, and the import of its tracer, Dynamo.

Input: a question about a frame, callbacks. Output: frames that run as they are, with all that they
call; contexts around the import of Dynamo. Invariant: what is compiled for other frames of the same
code stays compiled and is found again; Dynamo is never imported here.

Dynamo is asked at each frame that it may compile, in a class of its own, and nothing can be told to
it before: no mode is on when a fake meets a compiled function after its mode. So that class is
changed, once, in a process that makes fakes, when Dynamo is imported; and stays so. Checked
on torch 2.13 and 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

TRACER = "torch._dynamo"
_PACKAGES = (TRACER, "torch._inductor", "torch.distributed.optim")
"""What reads functions of torch as it is imported; the last compiles some by torch.jit."""

swap_frame_callback: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame
"""Set what is asked at each frame of this thread (None: nothing is), and return what was."""


class _ImportWatch:
    """Finds modules of torch where Python does. Those of :data:`_PACKAGES` are executed in a
    context each; after some modules a function is called. It is the first of the finders.
    """

    def __init__(
        self,
        context: Callable[[], AbstractContextManager[Any]],
        then: Mapping[str, Callable[[], None]],
    ) -> None:
        self._context, self._then = context, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(_PACKAGES) and name not in self._then:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute: Callable[[Any], None] = spec.loader.exec_module

        def execute_in_context(module: Any) -> None:
            with self._context():
                execute(module)
            if name in self._then:
                self._then[name]()

        spec.loader.exec_module = execute_in_context  # type: ignore[method-assign]
        return spec


def watch_imports(
    context: Callable[[], AbstractContextManager[Any]], then: Mapping[str, Callable[[], None]]
) -> None:
    """Have the modules of :data:`_PACKAGES` imported in a context each; and call a function when
    the module of its name is there, which may be now.
    """
    for name, function in then.items():
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec is not None and not getattr(spec, "_initializing", False):
            function()
    if not any(isinstance(finder, _ImportWatch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ImportWatch(context, then))


class MetUntraceable(BaseException):
    """Raised where Dynamo meets a fake while it traces, and handled here."""


class Untraceable:
    """``__tensor_flatten__``, which Dynamo looks for at each tensor that it traces.

    Args:
        thread: has the number of frames that this thread traces now, as ``traced_frames``.
        method: what others find under the name; None: nothing.
    """

    def __init__(self, thread: Any, method: Callable[..., Any] | None = None) -> None:
        self._thread = thread
        self._method = method

    def __get__(self, tensor: Any, cls: Any = None) -> Any:
        if tensor is not None and self._thread.traced_frames:
            raise MetUntraceable
        if self._method is None:
            raise AttributeError("__tensor_flatten__")
        return self._method if tensor is None else types.MethodType(self._method, tensor)


def run_as_they_are(
    is_met: Callable[[dict[str, Any]], bool],
    is_off: Callable[[], bool],
    thread: Any,
    skipped: Iterable[str],
) -> None:
    """Have frames run as they are, with all that they call, where torch.compile is off; where their
    variables are such as `is_met` says; and where Dynamo meets something :class:`Untraceable`, for
    which it counts frames in `thread`. The modules `skipped` are never traced. Call it once.
    """
    _replace(
        "torch._dynamo.convert_frame", "CatchErrorsWrapper.__call__", _converter, is_met, thread
    )
    _replace("torch._dynamo.eval_frame", "_callback_from_stance", _stance, is_met, is_off)
    _replace("torch._dynamo.compiled_autograd", "_enable", _compiled_backward, is_off)
    _skip(list(skipped))


def _skip(modules: list[str]) -> None:
    """Never trace `modules`. Each ``add`` would compile the pattern of all that is skipped once
    more, which takes milliseconds: only the last one does.
    """
    rules = sys.modules["torch._dynamo.trace_rules"]
    compile_pattern = rules._recompile_re
    rules._recompile_re = lambda: None  # type: ignore[attr-defined]
    try:
        for module in modules[:-1]:
            rules.add(module)
    finally:
        rules._recompile_re = compile_pattern  # type: ignore[attr-defined]
    rules.add(modules[-1])


def _replace(module: str, path: str, replacement: Callable[..., Any], *how: Any) -> None:
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, sys.modules[module])
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(replacement(original, *how)))


def _converter(original: Any, is_met: Callable[[dict[str, Any]], bool], thread: Any) -> Any:
    """What is asked at each frame that has not been compiled for its variables."""

    def convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self._torchdynamo_orig_backend, "_export", False):
            return original(self, frame, *args, **kwargs)
        if is_met(frame.f_locals):
            return _not_converted()
        thread.traced_frames += 1
        try:
            return original(self, frame, *args, **kwargs)
        except MetUntraceable:
            return _not_converted()
        finally:
            thread.traced_frames -= 1

    return convert


def _stance(
    original: Any, is_met: Callable[[dict[str, Any]], bool], is_off: Callable[[], bool]
) -> Any:
    """What a compiled function has asked at each frame while it runs; None: nothing."""

    def callback_from_stance(callback: Any) -> Any:
        if is_off():
            _expect_no_compiled_frames()
            return None
        asked = original(callback)
        if asked is callback or not callable(asked) or hasattr(asked, "hooks"):
            return asked
        return _checked(asked, is_met)  # another stance than the default

    return callback_from_stance


def _checked(asked: Any, is_met: Callable[[dict[str, Any]], bool]) -> Any:
    @functools.wraps(asked)  # with its attributes, by which Dynamo knows the backend
    def checked(frame: Any, *args: Any) -> Any:
        return _not_converted() if is_met(frame.f_locals) else asked(frame, *args)

    return checked


def _compiled_backward(original: Any, is_off: Callable[[], bool]) -> Any:
    """The context in which backward passes are compiled."""

    def enable(*args: Any, **kwargs: Any) -> Any:
        return contextlib.nullcontext() if is_off() else original(*args, **kwargs)

    return enable


def _not_converted() -> Any:
    """Dynamo's answer for a frame that is to run as it is, this time."""
    kinds = sys.modules["torch._dynamo.types"]
    _expect_no_compiled_frames()
    skip = kinds.FrameAction.SKIP
    return kinds.ConvertFrameReturn(
        frame_exec_strategy=kinds.FrameExecStrategy(skip, skip), apply_to_code=False
    )


def _expect_no_compiled_frames() -> None:
    """``fullgraph=True`` raises if none were compiled, unless their count has been switched off."""
    torch._C._dynamo.eval_frame.set_fullgraph_compiled_frame_count(-1)
