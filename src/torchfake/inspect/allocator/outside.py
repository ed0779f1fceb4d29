"""Memory outside of the caching allocator, which nvidia-smi shows in addition to reserved memory.

Input: nothing. Output: bytes. Invariant: all figures are round, not measured; no function of torch
reports them.
"""

from __future__ import annotations

MIB = 1 << 20

CONTEXT_BYTES = 512 * MIB
"""The CUDA context, and the kernels that were loaded into it. Its size depends on the GPU, the
driver and the kernels that are used. Before CUDA 11.7, which loads kernels lazily, it was larger:
1343 MiB on a V100, by transformers' documentation of training on one GPU.
"""

COMMUNICATOR_BYTES = 256 * MIB
"""The buffers of one NCCL communicator, for one process group. There is a buffer of NCCL_BUFFSIZE,
by default 4 MiB, per channel and peer; their number depends on how the GPUs are connected.
"""

MARGIN_BYTES = 512 * MIB
"""The margin beside the context: for scratch memory of kernels that is not modelled (workspaces of
cuDNN, buffers of sorts and of attention), and for other processes.
"""

_TIGHT_SHARE = 0.05
"""Share of a GPU's memory; less headroom may be used up by memory that is not modelled."""


def verdict_of(headroom_bytes: int, total_bytes: int) -> str:
    """``"yes"``, ``"no"``, or ``"tight"``: fits, with less than 5 % of the memory left."""
    if headroom_bytes < 0:
        return "no"
    return "tight" if headroom_bytes < _TIGHT_SHARE * total_bytes else "yes"
