"""autocast for fakes: the casts that torch makes for real tensors on the device that fakes report.

Input: a call of a torch function while autocast is on. Output: its result, with the casts made.
Invariant: tensors that are not fakes are cast by torch alone.

Its files:

    kernels   where the casts are made: kernels for a dispatch key above autograd
    policies  which arguments are cast, and to which dtype
    lists     which operators autocast treats in which way
    cache     casts of weights, kept for as long as torch keeps its own
"""
