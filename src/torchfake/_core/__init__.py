"""The data model: the parts of a fake, devices, modes, and the traits of operators.

Input: sizes, strides, dtypes and devices; schemas of operators; the running frames. Output: records
of metadata, storages without memory, traits of operators, source locations. Invariant: this package
dispatches no operator on a fake, and only ``modes`` has thread-local state.

Its files, in reading order:

    gpu_names        finds the GPU profile that a name refers to
    gpu_profiles     the CUDA devices that a mode can report
    modes            thread-local state: the modes that are on
    devices          a fake's device, and the carrier device of its wrapper in C++
    metadata         interned records of shape, strides, dtype and device
    source_location  lines of user code, cheap to take and formatted when printed
    living           whether any fake lives in the process
    storage          storages without memory, and known values of small ones
    memory           real storages, and real tensors on them, from records
    schemas          how an operator treats its arguments, read from its schema once
    arguments        checks of the arguments of public functions
    pickle_names     the names by which pickles refer to functions and classes that have moved
"""
