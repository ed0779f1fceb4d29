"""Replacements of meta kernels that are missing, or that lay results out differently from eager.

Start here if an operator fails on fakes for lack of a meta kernel, or if its result has a wrong
shape, dtype or stride. tests/opinfo compares all of them with eager.

Its files, in reading order:

    first_use          which kernel to run, asked when the others may not be imported yet
    register           which meta kernels replace torch's
    layers             embeddings, norms, convolutions, pooling, attention
    losses             losses, gradients, optimizer steps
    elementwise        elementwise operators, histograms
    linear_algebra     decompositions, products
    draws              random numbers
    fake_quantization  floats rounded to the grid of an integer dtype
    cuda               operators that CUDA alone has, or has otherwise
    counted            results as long as values say, for an answer how long that is
"""

from torchfake._operators.meta_kernels.first_use import (
    register_meta_kernel as register_meta_kernel,  # documented in docs/adding_an_op.md
)
