"""The table of answers for ``torch.cuda`` in a mode with fake CUDA.

Input: the fake machine, and the arguments of the functions. Output: :data:`TABLE`. Invariant: every
public function and class of ``torch.cuda`` is in it (tests/_patches/accelerators/test_tables.py
walks the module).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
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
from torchfake._tensor.method_arguments import TYPE_NAMES


def _supports_bf16(machine: FakeAccelerator, including_emulation: bool = True) -> bool:
    return including_emulation or of_any.device_capability(machine)[0] >= 8


def _tensor_type(dtype: torch.dtype) -> Any:
    def make(machine: FakeAccelerator, *args: Any, device: Any = None) -> torch.Tensor:
        where = of_any.device_at(machine, device)
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.tensor(args[0], dtype=dtype, device=where)
        return torch.empty(*(args or (0,)), dtype=dtype, device=where)

    return make


_STATISTICS = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
    "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
_COUNTERS = ("current", "peak", "allocated", "freed")
_NUMBERS = (
    "num_alloc_retries", "num_ooms", "max_split_size", "num_sync_all_streams", "num_device_alloc",
    "num_device_free",
)  # fmt: skip


def _memory_stats(machine: FakeAccelerator, device: Any = None) -> dict[str, Any]:
    """The statistics that torch.cuda.memory_stats documents, all of them 0."""
    of_any.device_index(machine, device)
    zeros = dict.fromkeys(_COUNTERS, 0)
    pools = ("all", "large_pool", "small_pool")
    stats: dict[str, Any] = {name: {pool: {**zeros} for pool in pools} for name in _STATISTICS}
    stats |= {name: {**zeros} for name in ("oversize_allocations", "oversize_segments")}
    return stats | dict.fromkeys(_NUMBERS, 0)


def _flat_memory_stats(machine: FakeAccelerator, device: Any = None) -> dict[str, int]:
    return dict(sorted(_flattened("", _memory_stats(machine, device))))


def _flattened(prefix: str, stats: Any) -> list[tuple[str, int]]:
    if not isinstance(stats, dict):
        return [(prefix.removeprefix("."), stats)]
    parts = (_flattened(f"{prefix}.{name}", value) for name, value in stats.items())
    return list(itertools.chain.from_iterable(parts))


ALLOCATOR: dict[str, Any] = {
    "memory_stats": _flat_memory_stats,
    "memory_stats_as_nested_dict": _memory_stats,
    "memory_snapshot": lambda machine, *args, **kwargs: [],
    **each("host_memory_stats host_memory_stats_as_nested_dict", lambda machine: {}),
    **each("reset_accumulated_host_memory_stats reset_peak_host_memory_stats", of_any.do_nothing),
    "get_allocator_backend": of_any.constant("native"),
    "caching_allocator_disabled": lambda machine: contextlib.nullcontext(),
    **each("caching_allocator_enable ipc_collect memory._record_memory_history", of_any.do_nothing),
    "memory._snapshot": lambda machine, *args, **kwargs: {"segments": [], "device_traces": []},
}

TENSOR_TYPES = {name: _tensor_type(dtype) for dtype, name in TYPE_NAMES.items()}
"""The legacy constructors, such as ``torch.cuda.FloatTensor``; ``stand_ins`` replaces them."""

_OTHERS: dict[str, Any] = {
    "is_bf16_supported": _supports_bf16,
    "get_arch_list": lambda machine: ["sm_{}{}".format(*of_any.device_capability(machine))],
    "graph_pool_handle": of_any.constant((0, 0)),
    "default_generators": functools.partial(of_any.DefaultGenerators, "cuda", fake_machine),
    **each("nvtx.range_push nvtx.range_pop nvtx.range_start", of_any.constant(0)),
    **each("nvtx.range_end nvtx.mark profiler.start profiler.stop _sleep", of_any.do_nothing),
    "get_sync_debug_mode": of_any.constant(0),
    "set_sync_debug_mode": of_any.do_nothing,
}

_REFUSED = {
    **each("CUDAGraph graph make_graphed_callables export_dot export_graph_data", NO_CAPTURE),
    **each("CUDAPluggableAllocator MemPool change_current_allocator gds", NO_MEMORY),
    **each("caching_allocator_alloc caching_allocator_delete", NO_MEMORY),
    **each("ExternalStream get_stream_from_external GreenContext green_contexts", NO_DRIVER),
    **each("cudart check_error current_blas_handle current_solver_handle", NO_DRIVER),
    "list_gpu_processes": NO_DRIVER,
    **each("temperature power_draw clock_rate", NO_SENSOR),
    "nccl": NO_KERNELS + ": call the collectives of torch.distributed",
    "tunable": NO_KERNELS + " that could be tuned",
}

_UNCHANGED = """
    BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage
    DoubleStorage FloatStorage HalfStorage IntStorage LongStorage ShortStorage
    CudaError DeferredCudaCallError cudaStatus StreamContext device device_of stream
    get_gencode_flags is_tf32_supported use_mem_pool memory_summary
    memory_cached max_memory_cached reset_max_memory_allocated reset_max_memory_cached
    amp.GradScaler amp.amp_definitely_not_available amp.autocast amp.custom_bwd amp.custom_fwd
    amp.common.amp_definitely_not_available nvtx.range profiler.profile profiler.init
    graphs.register_graph_capture_start_hook graphs.register_graph_capture_end_hook
    graphs.register_graph_instantiate_hook graphs.register_graph_replay_start_hook
    graphs.register_graph_replay_end_hook graphs.register_graph_destroy_hook
    graph_annotations sparse
"""

TABLE = Table(
    "torch.cuda",
    "cuda",
    {**of_any.DEVICES, **of_any.MEMORY, **of_any.SEEDS, **STREAMS, **ALLOCATOR, **_OTHERS},
    _REFUSED,
    frozenset(_UNCHANGED.split()),
)

assert devices.KINDS["cuda"].has_profiles
