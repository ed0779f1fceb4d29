"""Where data comes from that no dispatched operation makes: memory, files, copies of real tensors.

Input: the originals of functions that make tensors of such data. Output: versions that make fakes
of it inside a mode. Invariant: outside a mode, or on another thread, each is the original.

Its files, in reading order:

    data_sources  functions that bring data into torch: asarray, from_dlpack, seeds
    files         torch.load and files that are mapped: what is in a file is not read
    safetensors_files  the same of safetensors
    offloading    weights that accelerate writes to the disk
    copies        copy.copy and copy.deepcopy of real tensors and generators
    effects       what a call of an initialiser does, and what follows for other sizes
    initializers  functions of torch.nn.init, done without a dispatch
    factories     torch.empty and its kin as layers call them, done without a dispatch
    reset_effects  what a reset of a layer does, and what follows for other sizes
    resets        reset_parameters of layers: several initialisers at once
    callees       what functions of layers call, and whether it is still what it was
    constructors  layers: their tensors, and what their resets do, in one go
    position_tables  tables that transformers computes in numpy, one element at a time
    draws         seeds and states of the global generator
    subclasses    constructors of tensor subclasses
"""
