"""What CUDA takes in addition to what operators request: rounding, and workspaces of cuBLAS.

Input: the profile of a GPU, the operators that ran. Output: bytes. Invariant:
the sizes are those of torch's own source; a CPU adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchfake._core.gpu_profiles import ROCM, CudaProfile
from torchfake._torch import kernels

CUDA_ROUNDING = 512
"""Bytes that CUDA's caching allocator rounds a request up to a multiple of: ``kMinBlockSize`` in
c10/cuda/CUDACachingAllocator.h."""

MATRIX_PRODUCTS = ("addmm", "baddbmm", "bmm", "mm", "addbmm", "addmv", "mv", "dot")
"""Operators that run in cuBLAS, for which torch keeps a workspace."""


def workspace_bytes(profile: CudaProfile | None, ops: Iterable[Any], *, is_training: bool) -> int:
    """Of all workspaces that are kept: one for the thread that runs forward and one for autograd's,
    since each thread has its own handle of cuBLAS. torch 2.15 keeps none: see ``kernel_memory``.
    """
    if profile is None or not kernels.cublas_workspace_is_kept():
        return 0
    if not any(is_matrix_product(op) for op in ops):
        return 0
    return (2 if is_training else 1) * cublas_workspace_bytes(profile)


def is_matrix_product(op: Any) -> bool:
    """Whether an operator, or its name, is one that runs in cuBLAS."""
    name = str(op).removeprefix("aten.").partition(".")[0]
    return name in MATRIX_PRODUCTS


def cublas_workspace_bytes(profile: CudaProfile) -> int:
    """The workspace torch gives each cuBLAS handle: ``parseChosenWorkspaceSize`` in
    aten/src/ATen/cuda/CublasHandlePool.cpp. 32 MiB from compute capability 9 on, else 8.125 MiB.
    hipBLAS' of a GPU of AMD is 128 MiB on gfx94x and gfx95x, else 32 MiB.
    """
    if profile.backend == ROCM:
        return (128 if profile.major == 9 and profile.minor >= 4 else 32) * 1024 * 1024
    return 4096 * 8 * 1024 if profile.major >= 9 else 4096 * 1024 * 2 + 16 * 1024 * 8
