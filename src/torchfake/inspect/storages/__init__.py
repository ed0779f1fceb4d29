"""The storages of a run: when each is allocated and freed, for what, and scratch memory on CUDA.

Input: the events of a run that :mod:`torchfake.observe` reports. Output: the lifetimes of all
storages, from which ``memory`` computes peaks. Invariant: tracking does not extend a lifetime.

In reading order:

    storage_tracker   the observer: records when each storage is allocated and freed, and for what
    lifetimes         these records as columns: bytes held after each event
    held              what is held at one moment, and at every moment
    engine_writes     results that the autograd engine writes in place in eager mode
    scratch           scratch memory on other GPUs than that of the run
    bounds_check      refuses known indices that are out of bounds, as eager does
    cuda_memory       memory beyond the requests of operators: rounding, workspaces of cuBLAS
    kernel_memory     scratch memory that CUDA kernels allocate while they run
    attention_memory  scratch memory of attention kernels
    reduction_memory  scratch memory of reductions
"""
