"""CUDA without a GPU: what torch calls of CUDA, compiled from C and preloaded.

torch as pip installs it then runs its own code of CUDA: the dispatcher, the composites, autograd's
engine with its threads and streams, and the caching allocator. Only the kernels do nothing. So the
operators of forward and backward, what is saved, and the bytes allocated and reserved are those of
a GPU; numbers are not. What only the libraries of CUDA know is not there: see ``libraries.c``.

In reading order:

    build          compiles the library, and runs a program with it
    runtime.c      devices, streams, events, memory
    kernels.c      properties of the device, launches, copies
    libraries.c    cuBLAS, cuDNN, cuFFT and NVRTC
"""
