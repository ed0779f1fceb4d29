"""Memory on CUDA beyond the requests of operators: rounding, and workspaces of cuBLAS.

Input: the profile of a GPU, the operators that ran. Output: bytes. Invariant: the sizes are those
of torch's own source; a CPU adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchfake._core.gpu_profiles import ROCM, CudaProfile
from torchfake._torch import kernels

CUDA_ROUNDING = 512
"""CUDA's caching allocator rounds each request up to a multiple of so many bytes
(``kMinBlockSize`` in c10/cuda/CUDACachingAllocator.h)."""

MATRIX_PRODUCTS = ("addmm", "baddbmm", "bmm", "mm", "addbmm", "addmv", "mv", "dot")
"""Operators that run in cuBLAS, for which torch allocates a workspace."""


def workspace_bytes(profile: CudaProfile | None, ops: Iterable[Any], *, is_training: bool) -> int:
    """Bytes of all persistent cuBLAS workspaces: each thread has its own handle, and training runs
    in two threads. torch 2.15 keeps none, but allocates one per call: see ``kernel_memory``.
    """
    if profile is None or not kernels.cublas_workspace_is_kept():
        return 0
    if not any(is_matrix_product(op) for op in ops):
        return 0
    return (2 if is_training else 1) * cublas_workspace_bytes(profile)


def is_matrix_product(op: Any) -> bool:
    """Whether an operator, or the operator of this name, runs in cuBLAS."""
    name = str(op).removeprefix("aten.").partition(".")[0]
    return name in MATRIX_PRODUCTS


def cublas_workspace_bytes(profile: CudaProfile) -> int:
    """Bytes of the workspace of one cuBLAS handle (``parseChosenWorkspaceSize`` in
    aten/src/ATen/cuda/CublasHandlePool.cpp): 32 MiB from compute capability 9 on, otherwise
    8.125 MiB. For hipBLAS on AMD's GPUs: 128 MiB on gfx94x and gfx95x, otherwise 32 MiB.
    """
    if profile.backend == ROCM:
        return (128 if profile.major == 9 and profile.minor >= 4 else 32) * 1024 * 1024
    return 4096 * 8 * 1024 if profile.major >= 9 else 4096 * 1024 * 2 + 16 * 1024 * 8
