"""What the driver holds beside the caching allocator: what nvidia-smi shows above reserved memory.

Input: nothing. Output: bytes. Invariant: these are round figures, not measured ones; no function of
torch reports them.
"""

from __future__ import annotations

MIB = 1 << 20

CONTEXT_BYTES = 512 * MIB
"""The CUDA context, and the kernels that were loaded into it. It depends on the GPU, the driver and
the kernels that are used; before CUDA 11.7 loaded kernels when they are first used it was far more:
1343 MiB on a V100 by transformers' documentation of training on one GPU.
"""

COMMUNICATOR_BYTES = 256 * MIB
"""The buffers of one communicator of NCCL, for one process group. NCCL_BUFFSIZE, 4 MiB if not set,
is for each channel and peer; how many there are depends on how the GPUs are connected.
"""

MARGIN_BYTES = 512 * MIB
"""What is kept free beyond the context: for the memory that kernels take while they run, which is
reserved too (workspaces of cuDNN, buffers of sorts and of attention), and for other processes.
"""
