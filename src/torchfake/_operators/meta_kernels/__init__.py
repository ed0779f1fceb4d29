"""Replacements of meta kernels that are missing, or whose results differ from those of eager.

Start here if an operator fails on fakes for lack of a meta kernel, or if its result has a wrong
shape or dtype; if only strides are wrong, a rule in ``result_strides`` is shorter. tests/opinfo
compares all of them with eager.

Its files, in reading order:

    first_use       finds the kernel to run; imports the other files at the first use
    register        the table of meta kernels that replace torch's
    outputs         the sizes and strides that ``out=`` tensors have after a call
    parts           the metadata functions of C++, and composites run in their parts
    layers          embeddings, norms, pooling, attention
    convolutions    convolutions and their gradients
    losses          losses, gradients, optimizer steps, rounding in training
    elementwise     elementwise operators, histograms, moved elements
    linear_algebra  decompositions, products
    factories       random numbers, ranges
    cuda            operators that only CUDA has, or whose results differ there
    counted         operators whose results have a length that depends on values
"""

from torchfake._operators.meta_kernels.first_use import (
    register_meta_kernel as register_meta_kernel,  # documented in docs/adding_an_op.md
)
