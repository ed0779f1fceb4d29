"""Operators that C++ computes otherwise for tensor subclasses, recorded as eager computes them.

Input: calls of these operators while operations are recorded, with fakes or real tensors. Output:
their results. Invariant: what is recorded has the bits of eager; the device of a fake is the one
that it reports.

In reading order:

    first_use         registers them before the first operation is recorded
    register          which operators, and the kernel of each
    composites        composites that C++ would decompose otherwise
    recurrent_layers  LSTM, GRU and RNN, likewise
    derivatives       gradients and tangents, of which C++ has another formula for subclasses
"""
