"""Where data comes from that no dispatched operation makes: memory, files, copies of real tensors.

Input: the originals of functions that make tensors of such data. Output: versions that make fakes
of it inside a mode. Invariant: outside a mode, or on another thread, each is the original.

Its files, in reading order:

    data_sources  functions that bring data into torch: asarray, from_dlpack, seeds
    files         torch.load and files that are mapped: what is in a file is not read
    safetensors_files  the same of safetensors
    offloading    weights that accelerate writes to the disk
    copies        copy.copy and copy.deepcopy of real tensors and generators
    draws         seeds and states of the global generator
    subclasses    constructors of tensor subclasses
"""
