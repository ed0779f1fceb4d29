"""What the driver holds beside the caching allocator: what nvidia-smi shows above reserved memory.

Input: what a GPU is; whether a step communicates. Output: bytes. Invariant: these are round figures,
each with where it was seen; no torch call reports them. Called by: ``memory`` and ``fit``.
"""

from __future__ import annotations

MIB = 1 << 20

CONTEXT_BYTES = {7: 430 * MIB, 8: 480 * MIB, 9: 520 * MIB}
"""The CUDA context with the kernels of cuBLAS that a training step loads (lazily, as from CUDA 11.7
on), by major compute capability. Seen on V100, A100 and H100 with drivers of 2023 to 2025 between 300
and 600 MiB; before CUDA 11.7 all kernels were loaded: 1343 MiB on a V100, in transformers'
documentation of training on one GPU.
"""

DEFAULT_CONTEXT_BYTES = 520 * MIB
"""That of a GPU which is not listed."""

COMMUNICATOR_BYTES = 256 * MIB
"""The buffers of one NCCL communicator, of one process group: 4 MiB (NCCL_BUFFSIZE) for each channel,
peer and direction, of which there are some 16 to 32 on NVLink."""


def context_bytes(major: int) -> int:
    """Of the CUDA context of a process on a GPU of this major compute capability."""
    return CONTEXT_BYTES.get(major, DEFAULT_CONTEXT_BYTES)
