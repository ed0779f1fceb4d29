"""Kernels for operators that C++ would decompose by the wrapper's device or data.

Input: a call of one of these operators with a fake among its tensors. Output: the call's result,
from operators that the dispatcher then sees one by one. Invariant: the kernels run above autograd,
for tensors that carry torchfake's dispatch key, and for no others.

Its files, in reading order:

    register      the kernels, registered before the first fake is made
    layers        norms, losses, pooling, the fused transformer layer
    matrices      singular values and eigenvalues without vectors
    sequences     recurrent layers and packed sequences
    gradients     gradients that lie otherwise than those of subclasses
    sums          sums of gradients, which the engine adds up in place
    views         views whose sizes, or whose bases', change in place
    tensors       one-hot encoding, splits, comparisons of devices, quasi-random numbers
    own_autograd  operators of other libraries with derivatives for one device
"""
