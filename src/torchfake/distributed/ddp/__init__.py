"""DistributedDataParallel on fakes: what its C++ does, in Python.

Input: the calls of torch's own ``DistributedDataParallel``, which runs unchanged. Output: buckets
of gradients, reduced as they are ready. Invariant: the order of allocations, copies and messages is
that of torch/csrc/distributed/c10d/reducer.cpp (torch 2.13), which counted runs on gloo confirm.

C++ reads the memory of parameters, which fakes do not have, and dispatches no operator that could
be answered instead.

Files, in reading order:

    buckets          gradients that are reduced together, in one flat tensor
    used_parameters  which parameters a step has used, and the map that ranks exchange
    reducer          when each gradient is ready, each bucket is reduced, and buckets are rebuilt
    broadcasts       parameters and buffers of the first rank, sent to the others
    replacements     the names of torch.distributed that are replaced by these
"""
