"""What each operator does with fakes: the metadata of its results, and their values where known.

Nearly all operators follow one procedure, in ``interpreter``: run on meta tensors that alias as the
fakes do, and read the results back. The other files are parts of that procedure, and the operators
that it does not fit. The package ``meta_kernels`` replaces kernels that are missing or wrong.

Input: an operator and its arguments, from ``_dispatch``, when the cache has no recipe. Output: its
result, as fakes. Invariant: no real tensor is written, and the global random generators do not
move.

Its files, in reading order:

    operator_call         one operation: its arguments, the tensors among them, the result's device
    interpreter           the general procedure: run on meta tensors, wrap what comes back
    result_strides        gives results the strides of eager, where meta kernels give others
    argument_checks       refuses what eager refuses and meta kernels let pass
    special_operators     handlers of the operators that the general procedure does not fit
    set_storage           the handler of set_: a fake views another storage
    collectives           the operators of torch.distributed: their metadata, and what they send
    composites            kernels above autograd, for operators that C++ would decompose wrongly
    constant_propagation  computes the values of results from known values of arguments
    lazy_values           leaves such a computation until its value is read
    random_values         draws: which values are kept, and the generator that moves for all of them
    lazy_draws            draws of a few floats, done when their values are read
"""
