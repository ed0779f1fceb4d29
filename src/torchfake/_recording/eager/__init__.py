"""Operators that C++ computes differently for tensor subclasses, recorded as in eager mode.

Input: calls of these operators while operations are recorded, with fakes or real tensors. Output:
their results. Invariant: what is recorded has the bits of eager; the device of a fake is the one
that it reports.

In reading order:

    first_use         registers them before the first operation is recorded
    register          which operators, and the kernel of each
    composites        composite operators that C++ decomposes differently for subclasses
    recurrent_layers  LSTM, GRU and RNN, which C++ also decomposes differently
    derivatives       gradients and tangents that C++ computes by another formula for subclasses
"""
