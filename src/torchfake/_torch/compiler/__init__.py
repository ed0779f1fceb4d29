"""Adapters to torch.compile and to the operators that take functions.

They are a package of their own because torch imports most of it late: ``torch._dynamo`` with the
first call of ``torch.compile``, and by far not in every process.

Its files, in reading order:

    frames        which frames torch.compile takes over, and the import of its tracer
    higher_order  operators that take functions: their kernels, and where fakes get one
"""
