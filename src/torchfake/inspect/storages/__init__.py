"""The storages of a run: when each is allocated and freed, for what, and what kernels of CUDA add.

Input: what :mod:`torchfake.observe` tells of a run. Output: the lifetimes of all storages, from
which ``memory`` accounts peaks. Invariant: nothing here knows what is run; no storage lives longer.

In reading order:

    storage_tracker   the observer: records when each storage is allocated and freed, and for what
    lifetimes         these records as columns: bytes held after each event
    bounds_check      refuses known indices that are out of bounds, as eager does
    cuda_memory       what CUDA adds: rounding of allocations, workspaces of cuBLAS
    kernel_memory     what kernels of CUDA allocate while they run
    attention_memory  what the kernels of attention allocate
    reduction_memory  what reductions allocate
"""
