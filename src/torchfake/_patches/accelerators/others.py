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
from torchfake._patches.accelerators.tables import (
    NO_CAPTURE,
    NO_DRIVER,
    NO_KERNELS,
    NO_MEMORY,
    NO_SENSOR,
    Table,
    each,
    fake_machine,
)
from torchfake._patches.patch import Patch, replacing
from torchfake._torch import backends


def _empty_stats(machine: FakeAccelerator, device: Any = None) -> dict[str, Any]:
    """Return no statistics: nothing is counted, and only CUDA documents its counters."""
    of_any.device_index(machine, device)
    return {}


_COMMON: dict[str, Any] = {
    **of_any.DEVICES,
    **of_any.MEMORY,
    **of_any.SEEDS,
    **STREAMS,
    **each("memory_stats memory_stats_as_nested_dict", _empty_stats),
    "is_bf16_supported": of_any.constant(True),
}

_MPS = Table(
    "torch.mps",
    "mps",
    {
        **_COMMON,
        **each("current_allocated_memory driver_allocated_memory", of_any.constant(0)),
        "recommended_max_memory": of_any.total_memory,
        "_get_default_mps_generator": of_any.default_generator,
        **each("profiler.start profiler.stop", of_any.do_nothing),
        **each(
            "profiler.is_metal_capture_enabled profiler.is_capturing_metal", of_any.constant(False)
        ),
    },
    {**each("compile_shader load_metallib", NO_KERNELS), "profiler.metal_capture": NO_CAPTURE},
    frozenset(["profiler.profile", "stream"]),
)

_BACKENDS_MPS = Table(
    "torch.backends.mps",
    "mps",
    each("is_available is_built is_macos_or_newer is_macos13_or_newer", of_any.constant(True)),
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
        "default_generators": functools.partial(of_any.DefaultGenerators, "xpu", fake_machine),
        "get_arch_list": lambda machine: [],
        "get_gencode_flags": of_any.constant(""),
        "graph_pool_handle": of_any.constant((0, 0)),
    },
    {
        **each("XPUPluggableAllocator change_current_allocator MemPool", NO_MEMORY),
        **each("XPUGraph graph make_graphed_callables", NO_CAPTURE),
        **each("get_stream_from_external list_gpu_processes", NO_DRIVER),
        **each("clock_rate power_draw temperature", NO_SENSOR),
    },
    frozenset(["StreamContext", "device", "device_of", "stream", "use_mem_pool"]),
)

_MTIA = Table(
    "torch.mtia",
    "mtia",
    {
        **_COMMON,
        **each("record_memory_history attach_out_of_memory_observer", of_any.do_nothing),
        "snapshot": lambda machine: {},
        "graph_pool_handle": of_any.constant((0, 0)),
    },
    {
        **each("MTIAGraph graph", NO_CAPTURE),
        "get_device_capability": "there are profiles of CUDA devices alone",
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
        **each("current_device_index current_device_idx", of_any.current_device),
        **each("set_device_index set_device_idx", of_any.set_device),
        "empty_host_cache": of_any.do_nothing,
        **{f"random.{name}": answer for name, answer in of_any.SEEDS.items()},
        "get_memory_info": of_any.mem_get_info,
    },
    {"Graph": NO_CAPTURE},
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
        "default_generators": functools.partial(of_any.DefaultGenerators, name, fake_machine),
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
