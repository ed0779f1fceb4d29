"""A model of CUDA's caching allocator: computes reserved memory from a sequence of allocations.

Input: settings as in ``PYTORCH_CUDA_ALLOC_CONF``, and requests of bytes. Output: blocks at
addresses, the memory that is reserved for them, and a snapshot that torch's own tools read.
Invariant: no memory is allocated; the model gives the addresses, sizes and counts that torch's
allocator gives for the same requests on a device that hands out ascending addresses.

In reading order:

    settings           parses a settings string; errors name the option
    sizes              how a request is rounded, and the size of the segment allocated for it
    device_memory      the device: how much of it is taken, which addresses are next
    blocks             blocks of segments, and the pools in which free blocks are cached
    expandable         expandable segments: pages mapped at their end, unmapped on release
    caching_allocator  allocates and frees: best fit, splits, merges, release and retry
    replay             replays a run's allocations and frees, step after step
    snapshot           blocks and trace in the format of torch's memory snapshots
    outside            memory that nvidia-smi shows in addition: CUDA context, communicators

The model follows c10/cuda/CUDACachingAllocator.cpp; functions and constants named in docstrings are
in that file, unless another one is given.
"""
