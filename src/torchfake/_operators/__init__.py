"""Runs operators on fakes: computes the metadata of the results, and their values where known.

Nearly all operators follow one procedure, in ``interpreter``: run on meta tensors that alias as the
fakes do, and read the results back. The other files are parts of that procedure. The package
``handlers`` has the operators that it does not fit, and ``meta_kernels`` replaces missing or wrong
kernels.

Input: an operator and its arguments, from ``_dispatch``, when the cache has no recipe. Output: the
operator's result, as fakes. Invariant: an operator on fakes writes no real tensor and moves no
global random generator.

Its files, in reading order:

    operator_call         one operation: its arguments, the tensors among them, the result's device
    interpreter           the general procedure: run on meta tensors, wrap what comes back
    result_strides        gives results the strides of eager, where meta kernels give others
    argument_checks       refuses arguments that eager refuses and meta kernels accept
    constant_propagation  computes the values of results from known values of arguments
    in_place              refuses what does not fit where an elementwise operator writes it
    data_dependent        operators whose result, or its shape, depends on known values
    argument_values       which values a check may read before a call runs, recorded ones too
    lazy_values           defers the computation of a known value until the value is read
    random_values         draws: which values are kept, and the generator that each draw advances
    lazy_draws            draws of a few floats, made when their values are read
"""
