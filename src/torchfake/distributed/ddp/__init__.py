"""DistributedDataParallel on fakes: its C++ part, in Python.

Input: the calls of torch's own ``DistributedDataParallel``, which runs unchanged. Output: buckets
of gradients, reduced as they become ready. Invariant: the order of allocations, copies and messages
is that of torch/csrc/distributed/c10d/reducer.cpp (torch 2.13); runs on gloo have confirmed it.

The C++ code reads the memory of parameters, which fakes do not have, and dispatches no operators
that could be intercepted.

Files, in reading order:

    buckets          gradients that are reduced together, in one flat tensor
    used_parameters  which parameters a step has used, and the map that ranks exchange
    reducer          gradients become ready, buckets are reduced, and buckets are rebuilt
    broadcasts       parameters and buffers of the first rank, sent to the others
    replacements     the names of torch.distributed that are replaced
"""
