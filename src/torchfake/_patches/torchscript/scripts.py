"""TorchScript in a mode, and with fakes outside of modes: nothing of a fake stays in a script.

Input: calls of scripts and of traced functions. Output: what eager gives, as fakes. Invariant: what
a script keeps of its runs (constants, profiles, plans) is what it would keep if there had been no
mode and no fake.

Where a mode is entered (``_patches/entry``), the executor is told to run scripts as written. Here
is the rest: operators on the threads of ``torch.jit.fork``, tensors that the interpreter writes in
C++, and calls with fakes outside of modes.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils import _pytree as pytree

from torchfake._core import devices, modes
from torchfake._dispatch import FakeDispatch
from torchfake._operators.composites.register import register_kernels_of_scripts
from torchfake._patches import while_fakes_live
from torchfake._patches.patch import replacing
from torchfake._patches.threads import CapturedMode
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._tensor.known_values import read_value
from torchfake._torch import dispatcher
from torchfake._torch.compiler import scripts
from torchfake._torch.compiler.python_functions import Replacement
from torchfake.errors import TorchFakeError, UnsupportedOpError

_EMPTY = torch.ops.aten.empty.memory_format
_LIFT = torch.ops.aten.lift_fresh.default
_RANDOM = {torch.Tag.nondeterministic_seeded}
_OPTIONS_OF_LITERALS = {"dtype", "layout", "device"}


class _ScriptDispatch(FakeDispatch):
    """What is in torch's FAKE slot while a script runs: the mode's dispatch, on all threads."""

    def __init__(self, mode: Any, state: modes.ModeState) -> None:
        super().__init__()
        self.is_recording = mode.is_recording
        self._mode = mode
        self._captured = CapturedMode(state)
        # tensors that C++ fills, and what follows from them alone: real, since C++ passes on these
        # themselves; and the fakes that other operators get, by the id of the former
        self._literals: dict[int, tuple[torch.Tensor, list[Any]]] = {}
        self._error: TorchFakeError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mode, name)  # which may belong to an observer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            if modes.thread.modes:
                return self._run(func, types, args, kwargs or {})
            return self._captured.run(self._run_on_forked_thread, func, types, args, kwargs or {})
        except TorchFakeError as error:
            self._error = error
            raise

    def call(self, script: Any, args: Any, kwargs: Any) -> Any:
        """The result of a script. C++ makes another error of ours, at times without its text."""
        try:
            with dispatcher.in_fake_slot(self):
                return _with_devices(self._with_fakes(script(*args, **kwargs)))
        except Exception as error:
            if self._error is None:
                raise
            raise self._error from error

    def _run_on_forked_thread(self, *call: Any) -> Any:
        with dispatcher.in_fake_slot(None):  # as inside any dispatch
            return self._run(*call)

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if _is_for_literal(func, args, kwargs):
            return self._noted(func(*args, **kwargs))
        if self._literals and not _is_for_fakes(kwargs):
            tensors = [t for t in pytree.tree_leaves([args, kwargs]) if isinstance(t, torch.Tensor)]
            are_literals = [id(tensor) in self._literals for tensor in tensors]
            if any(are_literals) and _RANDOM.isdisjoint(func.tags):
                if all(are_literals) or (func._schema.is_mutable and are_literals[0]):
                    return self._run_really(func, args, kwargs)
        args, kwargs = self._with_fakes([args, kwargs])
        return self._mode.__torch_dispatch__(func, types, args, kwargs)

    def _run_really(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute a literal from literals, or write into one, whatever is written."""
        args, kwargs = pytree.tree_map_only(FakeTensor, _value_of, [args, kwargs])
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            for _, fakes in self._literals.values():
                fakes.clear()
        return pytree.tree_map_only(torch.Tensor, self._noted, result)

    def _noted(self, literal: torch.Tensor) -> torch.Tensor:
        self._literals.setdefault(id(literal), (literal, []))
        return literal

    def _with_fakes(self, tree: Any) -> Any:
        """`tree` with fakes in the place of literals."""
        return pytree.tree_map_only(torch.Tensor, self._fake_of, tree) if self._literals else tree

    def _fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        real, fakes = self._literals.get(id(tensor), (None, []))
        if real is None:
            return tensor
        if not fakes:
            copy = real.clone()  # since the literal may be written later
            fakes.append(self._mode.__torch_dispatch__(_LIFT, (), (copy,), {}))
        return fakes[0]  # type: ignore[no-any-return]


def _is_for_fakes(kwargs: Any) -> bool:
    """Whether the result is on the device that C++ knows of a fake."""
    device = kwargs.get("device")
    return device is not None and devices.decode(device) != device


def _with_devices(tree: Any) -> Any:
    """`tree` with the devices that fakes report in the place of those that C++ knows of them."""
    return pytree.tree_map_only(torch.device, devices.decode, tree)


def _value_of(fake: torch.Tensor) -> torch.Tensor:
    return read_value(fake, "TorchScript, which writes it into a literal")


def _is_for_literal(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether this is the memory of ``torch.tensor([1, 2])`` in a script, which C++ writes to next,
    past the dispatcher. Fakes have none, and are never made on the CPU itself by their own options.
    """
    if func is not _EMPTY or kwargs.keys() != _OPTIONS_OF_LITERALS:
        return False
    return kwargs["device"] == devices.CPU and 0 not in args[0]


@replacing
def _calling_script(original: Any, script: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``__call__`` of functions and methods in TorchScript."""
    state = modes.current()
    if state is None:
        if not _meets_fakes(script, args, kwargs):
            return original(script, *args, **kwargs)
        _refuse_decisions_by_device(script)
        register_kernels_of_scripts()
        with scripts.optimizing(False):
            result = _with_devices(original(script, *args, **kwargs))
            _refuse_carriers([args, kwargs], result)
            return result
    mode = dispatcher.current_fake_mode()
    if not isinstance(mode, FakeDispatch) or isinstance(mode, _ScriptDispatch):
        return original(script, *args, **kwargs)
    _refuse_decisions_by_device(script, state.accelerator)
    register_kernels_of_scripts()
    dispatch = _ScriptDispatch(mode, state)
    return dispatch.call(functools.partial(original, script), args, kwargs)


def _refuse_carriers(given: Any, result: Any) -> None:
    """Refuse a tensor that a script has made on the device of a fake, outside of modes."""
    if _has_plain_meta(result) and not _has_plain_meta(given):
        raise UnsupportedOpError(
            "a script returns a tensor that it has made on the device of a fake, which in "
            "TorchScript is the meta device: call the script in fake_mode() or in deferred_mode()"
        )


def _has_plain_meta(tree: Any) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return any(t.is_meta and not isinstance(t, FakeTensor) for t in tensors)


_decisions: WeakKeyDictionary[Any, dict[str | None, str]] = WeakKeyDictionary()


def _refuse_decisions_by_device(script: Any, accelerator: Any = None) -> None:
    """Refuse a script that compares the device of a tensor: it would take the wrong branch."""
    device_type = None if accelerator is None else accelerator.device_type
    known = _decisions.setdefault(script, {})
    if device_type not in known:
        known[device_type] = scripts.decides_by_device(script, device_type)
    if known[device_type]:
        raise UnsupportedOpError(
            f"a script decides by the device of a tensor ({known[device_type]!r}), which in "
            "TorchScript is not the device of a fake. Compare devices outside of the script, or "
            "run its function as Python (PYTORCH_JIT=0)"
        )


def _meets_fakes(script: Any, args: Any, kwargs: Any) -> bool:
    owner = scripts.owner_of(script)
    held = [] if owner is None else scripts.tensors_of(owner)
    return any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves([args, kwargs, held]))


def _replacements() -> list[Replacement]:
    return [(cls, "__call__", _calling_script) for cls in scripts.CLASSES]


while_fakes_live.replacements["torch.jit"] = _replacements
