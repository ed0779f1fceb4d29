"""Operators that take functions, on fakes: ``cond``, ``while_loop``, ``scan``, ``flex_attention``.

Input: a higher-order operator and its arguments, from torch's dispatcher and from ``_dispatch``.
Output: the results of the functions on fakes; for attention, metadata. Invariant: an operator that
has no meaning for fakes is refused by name.

Its files, in reading order:

    kernels         the kernel that each operator has for fakes
    flex_attention  attention with functions for scores and masks: outputs, gradients
    structures      trees of operands and results; transforms of torch.func
    captured        the tensors that a function refers to
"""
