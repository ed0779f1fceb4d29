"""Adapters to the private APIs of torch: all of them are named in this package and nowhere else.

Input: plain tensors, operators, modules and functions of torch. Output: torch's state and
behaviour, through functions with torchfake's names. Invariant: no other file of torchfake names
``torch._C``, and tests/_torch calls every public name of every file here, so that a torch that
changed an API fails there first. Verified on torch 2.12, 2.13 and 2.15.

Its files, in reading order:

    versions       which versions of torch this torchfake works with
    private_facts  assumptions about torch's internals, each with a check
    contexts       contexts that restore the state of torch wherever an interrupt arrives; locks
    subclass       wrappers without data, overrides, the identity of tensors and storages
    zero_tensors   tensors that are zero and have no memory
    dispatch_keys  dispatch keys that no backend uses, lent to torchfake
    dispatcher     dispatch modes, contexts that switch interception off
    kernels        decompositions and meta kernels of operators
    cpp_metadata   what C++ computes of metadata, for every device
    backends       devices, default dtype, default generators, modules of C++ functions
    numerics       settings of thread and process that change results of operators
    autograd       whether a tensor is in a live graph; sequence numbers of graph nodes

and the subpackages `compiler`, torch's tracers and compilers, and `distributed`.
"""

from torchfake._torch import versions

versions.refuse_old_torch()  # first: the files here need APIs that an old one lacks
