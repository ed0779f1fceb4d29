"""Sources of data that no dispatched operation makes: memory, files, copies of real tensors.

Input: the originals of functions that make tensors of such data. Output: versions that make fakes
inside a mode. Invariant: outside a mode, or on another thread, each is the original.

Its files, in reading order:

    data_sources  functions that bring data into torch: asarray, from_dlpack, seeds
    files         torch.load and mapped files: no values are read
    safetensors_files  files of safetensors: no values are read
    offloading    weights that accelerate writes to the disk
    copies        copy.copy and copy.deepcopy of real tensors and generators
    draws         seeds and states of the global generator
    subclasses    constructors of tensor subclasses
    uninitialized_parameters  parameters of lazy modules that were made outside of modes
    conjugate_views    conjugate and negative views of real tensors, read as lists and arrays
"""
