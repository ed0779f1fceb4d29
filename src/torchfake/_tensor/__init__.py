"""The fake tensor: what it reports, how it prints, copies and pickles, and the values it knows.

Input: a metadata record and a storage, from ``_core``. Output: :class:`FakeTensor`, and functions
that make fakes. Invariant: operators on fakes are called through torch alone, so that
``_operators``, above, computes their results.

Its files, in reading order:

    fake_tensor     the class, and the functions that make and change fakes
    classes         how fakes, parameters and subclasses construct and copy
    address         what data_ptr() gives: an identity, and no valid address
    storages        what untyped_storage() and storage() of a fake give
    method_arguments  the arguments of Tensor.to, Tensor.type and Tensor.new, and indices
    known_values    reading: tolist(), numpy(), dlpack; small host tensors whose values are kept
    torch_function  __torch_function__ of fakes: off, except where C++ decides before any dispatch
    gradient_devices  gradients on another device than their tensors, refused
    attention       which kernel of scaled_dot_product_attention the reported device runs
    cuda_attention  which of the fused kernels a GPU runs
    copies          fake copies of tensors and modules, made together
    pickling        the names by which pickles refer to fakes

The subpackage ``autocast`` makes the casts that C++ autocast makes on the reported device.
"""
