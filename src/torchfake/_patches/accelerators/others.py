"""The tables of answers for modules of other accelerators than ``torch.cuda``.

Input: the fake machine, and the arguments of the functions. Output: :data:`TABLES` and
:data:`ACCELERATOR`. Invariant: every public function of these modules is in its table
(tests/_patches/accelerators/test_tables.py walks them).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfake._core import devices
from torchfake._core.modes import FakeAccelerator
from torchfake._patches.accelerators import machine as of_any
from torchfake._patches.accelerators.streams import STREAMS
from torchfake._patches.accelerators.tables import Table, fake_machine
from torchfake._patches.patch import Patch, replacing
from torchfake._torch import backends

_NO_KERNELS = "no kernel runs there"
_NO_DRIVER = "there is no driver behind them"
_NO_SENSOR = "there is nothing to measure"
_NO_MEMORY = "they have no memory"
_NO_PROFILE = "there are profiles of CUDA devices alone"
_NO_CAPTURE = "no kernel runs there that could be captured; run the function itself"


def _empty_stats(machine: FakeAccelerator, device: Any = None) -> dict[str, Any]:
    """Return no statistics: nothing is counted, and only CUDA documents its counters."""
    of_any.device_index(machine, device)
    return {}


def _default_generators(device_type: str, original: Any) -> Any:
    return of_any.DefaultGenerators(original, device_type, fake_machine)


_COMMON: dict[str, Any] = {
    **of_any.DEVICES,
    **of_any.MEMORY,
    **of_any.SEEDS,
    **STREAMS,
    "memory_stats": _empty_stats,
    "memory_stats_as_nested_dict": _empty_stats,
    "is_bf16_supported": of_any.constant(True),
}

_MPS = Table(
    "torch.mps",
    "mps",
    {
        **_COMMON,
        "current_allocated_memory": of_any.constant(0),
        "driver_allocated_memory": of_any.constant(0),
        "recommended_max_memory": of_any.total_memory,
        "_get_default_mps_generator": of_any.default_generator,
        "profiler.start": of_any.do_nothing,
        "profiler.stop": of_any.do_nothing,
        "profiler.is_metal_capture_enabled": of_any.constant(False),
        "profiler.is_capturing_metal": of_any.constant(False),
    },
    {
        "compile_shader": _NO_KERNELS,
        "load_metallib": _NO_KERNELS,
        "profiler.metal_capture": _NO_CAPTURE,
    },
    frozenset(["profiler.profile", "stream"]),
)

_BACKENDS_MPS = Table(
    "torch.backends.mps",
    "mps",
    dict.fromkeys(
        ("is_available", "is_built", "is_macos_or_newer", "is_macos13_or_newer"),
        of_any.constant(True),
    ),
)

_XPU = Table(
    "torch.xpu",
    "xpu",
    {
        **_COMMON,
        "can_device_access_peer": lambda machine, device, peer: of_any.can_access_peer(
            machine, device, peer
        ),
        "is_tf32_supported": of_any.constant(True),
        "memory_snapshot": lambda machine, *args, **kwargs: [],
        "default_generators": functools.partial(_default_generators, "xpu"),
        "get_arch_list": lambda machine: [],
        "get_gencode_flags": of_any.constant(""),
        "graph_pool_handle": of_any.constant((0, 0)),
    },
    {
        "XPUPluggableAllocator": _NO_MEMORY,
        "change_current_allocator": _NO_MEMORY,
        "MemPool": _NO_MEMORY,
        "XPUGraph": _NO_CAPTURE,
        "graph": _NO_CAPTURE,
        "make_graphed_callables": _NO_CAPTURE,
        "get_stream_from_external": _NO_DRIVER,
        "list_gpu_processes": _NO_DRIVER,
        "clock_rate": _NO_SENSOR,
        "power_draw": _NO_SENSOR,
        "temperature": _NO_SENSOR,
    },
    frozenset(["StreamContext", "device", "device_of", "stream", "use_mem_pool"]),
)

_MTIA = Table(
    "torch.mtia",
    "mtia",
    {
        **_COMMON,
        "record_memory_history": of_any.do_nothing,
        "attach_out_of_memory_observer": of_any.do_nothing,
        "snapshot": lambda machine: {},
        "graph_pool_handle": of_any.constant((0, 0)),
    },
    {
        "MTIAGraph": _NO_CAPTURE,
        "graph": _NO_CAPTURE,
        "get_device_capability": _NO_PROFILE,
    },
    frozenset(["DeferredMtiaCallError", "StreamContext", "device", "stream"]),
)
# set_stream and the rest are answered in _COMMON; torch.mtia has fewer of them than torch.cuda

ACCELERATOR = Table(
    "torch.accelerator",
    None,
    {
        **_COMMON,
        "current_accelerator": lambda machine, check_available=False: torch.device(
            machine.device_type
        ),
        "current_device_index": of_any.current_device,
        "current_device_idx": of_any.current_device,
        "set_device_index": of_any.set_device,
        "set_device_idx": of_any.set_device,
        "empty_host_cache": of_any.do_nothing,
        **{f"random.{name}": answer for name, answer in of_any.SEEDS.items()},
        "get_memory_info": of_any.mem_get_info,
    },
    {"Graph": _NO_CAPTURE},
    frozenset(["device_index"]),
)
"""``torch.accelerator`` describes the fake machine, whatever its type. (Optimizers call it.)"""

_BACKENDS_CUDA = Table("torch.backends.cuda", "cuda", {"is_built": of_any.constant(True)})

TABLES = [_MPS, _BACKENDS_MPS, _XPU, _MTIA, _BACKENDS_CUDA]


def table_of_privateuse1() -> Table:
    """The table of the module that a privateuse1 backend has registered."""
    name = backends.name_of_privateuse1()
    answered = {
        **_COMMON,
        "default_generators": functools.partial(_default_generators, name),
    }
    return Table(f"torch.{name}", name, answered)


@replacing
def _entered(original: Any, context: Any) -> Any:
    """``with torch.accelerator.device_index(1)``: C++ would call a driver."""
    machine = fake_machine(None)
    if machine is None:
        return original(context)
    if context.idx is not None:
        context.prev_idx = of_any.exchange_device(machine, context.idx)
    return None


@replacing
def _exited(original: Any, context: Any, *error: Any) -> Any:
    machine = fake_machine(None)
    if machine is None:
        return original(context, *error)
    if context.idx is not None:
        of_any.exchange_device(machine, context.prev_idx)
    return None


@replacing
def _accelerator_of_bindings(original: Any) -> Any:
    machine = fake_machine(None)
    return original() if machine is None else torch.device(machine.device_type)


@replacing
def _get_device_module(original: Any, device: Any = None) -> Any:
    """``torch.get_device_module``, whose answers torch caches for the whole process."""
    machine = fake_machine(None)
    if machine is None:
        return original(device)
    device = machine.device_type if device is None else device
    return original.__wrapped__(device)


PATCHES = [
    Patch(torch, "get_device_module", _get_device_module),
    Patch(torch.accelerator.device_index, "__enter__", _entered),
    Patch(torch.accelerator.device_index, "__exit__", _exited),
    Patch(backends.bindings, "_get_accelerator", _accelerator_of_bindings),
]

assert {t.device_type for t in TABLES} <= devices.KINDS.keys()
