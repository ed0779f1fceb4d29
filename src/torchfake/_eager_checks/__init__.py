"""Errors of eager that meta kernels do not raise, found by running eager's kernel on small tensors.

Input: a call that is run for the first time, since the cache has no recipe for it. Output: nothing,
or the error that eager raises. Invariant: a call that eager accepts is accepted, no memory of the
program is written, and no generator of the program moves.

Its files, in reading order:

    small_calls  a call on small real tensors, and the error of a kernel
    draws        whether eager accepts the dtypes and the parameters of a draw
    dtypes       whether eager accepts the dtypes of any call
    cuda_dtypes  which operators and dtypes CUDA refuses, for calls on fake CUDA
    strings      whether eager accepts strings among the arguments
    indices      the ranges of indices
    conditions   what else is checked of values: lengths, counts, probabilities, divisors
    no_elements  calls with tensors without elements, or with dims that kernels refuse
    products     sizes of tensors to which products are added
    values       whether known values are accepted, recorded ones too
    overlaps     writes to memory that repeats, or that other arguments read
    checked_run  an operator, run without the cache after these checks
"""
