"""CUDA's caching allocator as a model: from allocations and frees in order to reserved memory.

Input: settings as ``PYTORCH_CUDA_ALLOC_CONF`` has them, and requests of bytes. Output: blocks at
addresses, the memory that is reserved for them, and a snapshot as torch's own tools read it.
Invariant: no memory is allocated; the same requests in the same order give the addresses, sizes and
counts that torch's allocator gives on a device that hands out ascending addresses.

In reading order:

    settings           a settings string, parsed; errors name the option
    sizes              how a request is rounded, and how much is asked of the device for it
    device_memory      the device: how much of it is taken, which addresses are next
    blocks             blocks of segments, and the pools in which free ones are cached
    expandable         segments that grow: pages mapped at their end, unmapped on release
    caching_allocator  allocates and frees: best fit, splits, merges, release and retry
    replay             a run's allocations and frees, step after step, through the allocator
    snapshot           what is allocated, and the trace, in the format of torch's memory snapshots
    outside            what nvidia-smi shows beside it: the CUDA context, and communicators

The source that this is a model of is c10/cuda/CUDACachingAllocator.cpp; functions and constants
named in comments are those of that file, unless they say otherwise.
"""
