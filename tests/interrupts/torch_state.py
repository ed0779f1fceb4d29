"""All that a mode may change in torch, described so that two descriptions can be compared."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.utils import _python_dispatch

from torchfake import deferred_init, fake_mode, is_fake, materialize_module
from torchfake._core import modes
from torchfake._graph.operations import recording_lock
from torchfake._materialize import pipeline
from torchfake._random import lazy_generators, recorded_draws
from torchfake._torch import dispatcher

_KEPT_MODULES = (
    torch, torch._C, torch._C._nn, torch.cuda, torch.cuda.random, torch.cuda.memory, torch.autograd,
    torch.accelerator, torch.fft, torch.multiprocessing, torch.nn.functional, torch.nn.init,
    torch.nn.parameter, torch.optim, torch.random, torch.serialization, torch.utils.data,
    torch.backends.cudnn, vars(torch.backends.cudnn)["m"], torch.overrides, torch.cuda.amp.common,
)  # fmt: skip
_KEPT_CLASSES = (
    torch.Tensor, torch._C.TensorBase, nn.Module, nn.Parameter, nn.UninitializedParameter,
    nn.Linear, nn.Embedding, torch.cuda.Stream, torch.cuda.Event,
)  # fmt: skip


def _more_owners() -> list[Any]:
    """Owners of attributes that are patched only if they have been imported."""
    names = {
        "torch._subclasses.fake_tensor": ("FakeTensor", "FakeTensorMode"),
        "torch.distributed.tensor": ("DTensor",),
        "transformers.modeling_utils": (),
        "torch.utils._python_dispatch": (),
        "huggingface_hub.constants": (),
        "torch.distributed.tensor._random": (),
    }
    owners: list[Any] = []
    for module, classes in names.items():
        found = sys.modules.get(module)
        if found is not None:
            owners += [found, *(getattr(found, name) for name in classes)]
    return owners


def attributes_of_torch() -> dict[str, dict[str, Any]]:
    """The attributes of torch's modules and classes, by their names."""
    owners = (*_KEPT_MODULES, *_KEPT_CLASSES, *_more_owners())
    return {f"{o.__name__}@{i}": dict(vars(o)) for i, o in enumerate(owners)}


def _thread_state() -> dict[str, Any]:
    c: Any = torch._C
    dispatch: Any = _python_dispatch
    autocast = [torch.is_autocast_enabled(d) for d in ("cpu", "cuda", "ipu")]
    return {
        "FAKE slot": dispatcher.current_fake_mode(),
        "dispatch modes": (c._len_torch_dispatch_stack(), *map(c._get_dispatch_mode, _KEYS)),
        "dispatch flags": (
            dispatch._is_in_torch_dispatch_mode, dispatch._is_in_non_infra_torch_dispatch_mode
        ),
        "function modes": c._len_torch_function_stack(),
        "torch functions": c._get_torch_function_state(),
        "only_lift_cpu": c._only_lift_cpu_tensors(),
        "included keys": str(c._dispatch_tls_local_include_set()),
        "excluded keys": str(c._dispatch_tls_local_exclude_set())[-80:],
        "autocast": (*autocast, torch.is_autocast_cache_enabled()),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "tracing": getattr(torch._guards._TLS, "tracing_context", None),
        "our modes": list(modes.thread.modes),
        "our override": vars(modes.thread).get("torch_function"),
        "our initializer": modes.thread.initializer_frame,
        "our meta patchers": list(modes.thread.meta_patchers),
        "our locks": [lock._is_owned() for lock in _LOCKS],
    }  # fmt: skip


_LOCKS: tuple[Any, ...] = (recording_lock, recorded_draws.lock, lazy_generators.lock, pipeline.lock)
"""Locks that a thread may take again while it holds them: only others would notice."""

_KEYS = [getattr(torch._C._TorchDispatchModeKey, n) for n in ("FAKE", "PROXY", "FUNCTIONAL")]


def state_of_torch() -> dict[str, Any]:
    """The rest of what modes may change, of this thread and of the process."""
    return {
        **_thread_state(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "sys.path": list(sys.path),
        "excepthook": sys.excepthook,
        "process group": torch.distributed.is_initialized(),
    }


def differences(
    before: tuple[dict[str, Any], dict[str, dict[str, Any]]],
) -> list[str]:
    """What of torch is not as it was."""
    state, attributes = before
    now = state_of_torch()
    found = [f"{name}: {state[name]} -> {now[name]}" for name in state if state[name] != now[name]]
    for owner, values in attributes_of_torch().items():
        known = attributes.get(owner)
        if known is None:
            continue
        found += [
            f"{owner}.{n}"
            for n, v in known.items()
            if values.get(n, known) is not v and "cache_" not in n
        ]
        found += [f"{owner}.{n} is new" for n in values if n not in known and n[0] != "_"]
    return found


def snapshot() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What :func:`differences` compares with."""
    return state_of_torch(), attributes_of_torch()


def failures_afterwards() -> list[str]:
    """Whether modes work, and give the bits of eager, from whatever state generators have now."""
    found = []
    if is_fake(torch.ones(1)):
        found.append("a factory is fake outside of all modes")
        return found
    state = torch.get_rng_state()
    expected = nn.Linear(3, 4)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    made = deferred_init(nn.Linear, 3, 4)
    if not torch.equal(torch.get_rng_state(), after):
        found.append("the next deferred_init leaves the generator elsewhere")
    materialize_module(made)
    if not (torch.equal(made.weight, expected.weight) and torch.equal(made.bias, expected.bias)):
        found.append("the next deferred_init gives other bits")
    with fake_mode(fake_cuda=True):
        if not is_fake(torch.ones(2, device="cuda") + 1):
            found.append("the next fake_mode makes no fakes")
    if is_fake(torch.ones(1)):
        found.append("the next fake_mode is not left")
    return found
