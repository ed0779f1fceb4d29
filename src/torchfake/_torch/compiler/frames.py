"""torch.compile: which frames it takes over, and the import of its tracer, Dynamo.

Input: a question about a frame, callbacks. Output: frames that run as they are, with all that they
call; contexts around the import of Dynamo. Invariant: code compiled for other frames of a function
stays compiled and is found again; Dynamo is never imported here.

Dynamo decides at each frame, in one of its classes, whether to compile the frame. A setting made in
a mode is not enough: a fake may meet a compiled function after its mode. So the class is changed as
long as fakes live or a mode is on. Checked on torch 2.13 and 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import sys
import types
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from torchfake._torch.compiler.python_functions import Replacement
from torchfake._torch.contexts import call_if

TRACER = "torch._dynamo"
_PACKAGES = (TRACER, "torch._inductor", "torch.distributed.optim")
"""Packages that read functions of torch on import; the last one compiles some by torch.jit."""

swap_frame_callback: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame
"""Set the callback for each frame of this thread, or None, and return the previous one."""


class ImportWatch:
    """A finder of modules, first in ``sys.meta_path``. It executes modules of :data:`_PACKAGES`,
    and the modules `names`, in ``context()`` each, and calls ``then()`` after each of `names`.
    """

    def __init__(
        self,
        context: Callable[[], AbstractContextManager[Any]],
        names: Collection[str],
        then: Callable[[], None],
    ) -> None:
        self._context, self._names, self._then = context, names, then
        self._executed: set[str] = set()

    def set_on(self, to_undo: list[Callable[[], Any]]) -> None:
        """Add the finder to ``sys.meta_path``, and a function that removes it to `to_undo`."""
        finders = sys.meta_path
        if finders is not None and self not in finders:  # None: Python is ending
            to_undo.append(call_if(map(finders.count, [self]), partial(finders.remove, self)))
            finders.insert(0, self)

    def is_imported(self, name: str) -> bool:
        """Whether the import of a module is complete."""
        spec = getattr(sys.modules.get(name), "__spec__", None)
        is_complete = spec is not None and not getattr(spec, "_initializing", False)
        return is_complete or name in self._executed

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(_PACKAGES) and name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute: Callable[[Any], None] = spec.loader.exec_module

        def execute_in_context(module: Any) -> None:
            with self._context():
                execute(module)
            if name in self._names:
                self._executed.add(name)
                self._then()

        spec.loader.exec_module = execute_in_context  # type: ignore[method-assign]
        return spec


class MetUntraceable(BaseException):
    """Raised where Dynamo meets a fake while it traces, and handled here."""


class Untraceable:
    """``__tensor_flatten__``, which Dynamo looks for at each tensor that it traces.

    Args:
        thread: has the number of frames that this thread traces now, as ``traced_frames``.
        method: the attribute while no frame is traced; None: there is no attribute then.
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
    is_met: Callable[[dict[str, Any]], bool], is_off: Callable[[], bool], thread: Any
) -> list[Replacement]:
    """Run frames as they are, with all that they call, where torch.compile is off; where `is_met`
    is true of their variables; and where Dynamo meets something :class:`Untraceable`, for which
    the traced frames are counted in `thread`.
    """
    modules: Any = sys.modules
    wrapper = modules["torch._dynamo.convert_frame"].CatchErrorsWrapper
    stances, backward = modules["torch._dynamo.eval_frame"], modules[f"{TRACER}.compiled_autograd"]
    return [
        (wrapper, "__call__", partial(_converter, is_met, thread)),
        (stances, "_callback_from_stance", partial(_stance, is_met, is_off)),
        (backward, "_enable", partial(_compiled_backward, is_off)),
    ]


def skip(skipped: Iterable[str]) -> None:
    """Have Dynamo trace none of these modules. Its list only grows, so call this once. Each ``add``
    would recompile the pattern of all skipped modules, which takes milliseconds: only the last one
    does.
    """
    modules = list(skipped)
    rules = sys.modules[f"{TRACER}.trace_rules"]
    compile_pattern = rules._recompile_re
    rules._recompile_re = lambda: None  # type: ignore[attr-defined]
    try:
        for module in modules[:-1]:
            rules.add(module)
    finally:
        rules._recompile_re = compile_pattern  # type: ignore[attr-defined]
    rules.add(modules[-1])


def _converter(is_met: Callable[[dict[str, Any]], bool], thread: Any, original: Any) -> Any:
    """Dynamo's converter, called at each frame not yet compiled for its variables."""

    @functools.wraps(original)
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
    is_met: Callable[[dict[str, Any]], bool], is_off: Callable[[], bool], original: Any
) -> Any:
    """The callback that a compiled function calls at each frame while it runs, or None."""

    @functools.wraps(original)
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


def _compiled_backward(is_off: Callable[[], bool], original: Any) -> Any:
    """The context in which backward passes are compiled."""

    @functools.wraps(original)
    def enable(*args: Any, **kwargs: Any) -> Any:
        return contextlib.nullcontext() if is_off() else original(*args, **kwargs)

    return enable


def _not_converted() -> Any:
    """Dynamo's answer for a frame that has to run uncompiled, this time."""
    kinds = sys.modules["torch._dynamo.types"]
    _expect_no_compiled_frames()
    skip = kinds.FrameAction.SKIP
    return kinds.ConvertFrameReturn(
        frame_exec_strategy=kinds.FrameExecStrategy(skip, skip), apply_to_code=False
    )


def _expect_no_compiled_frames() -> None:
    """Switch off the count of compiled frames: ``fullgraph=True`` raises if the count is zero."""
    torch._C._dynamo.eval_frame.set_fullgraph_compiled_frame_count(-1)
