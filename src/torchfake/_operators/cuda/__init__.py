"""Operators that C++ computes differently on CUDA, run for plain fakes on CUDA as CUDA runs them.

C++ asks a tensor whether it is on CUDA, and the wrapper of a fake answers no (``_core/devices``).
C++ would therefore take the path of other devices: a dropout mask in the dtype of the activations,
a norm in seven operators. Other, larger tensors would be saved for the backward pass.

Input: calls of these operators with a plain fake on CUDA among their tensors. Output: the calls'
results, from the operators that C++ would call for tensors on CUDA. Invariant: a call whose tensors
are all fakes on other devices, deferred fakes or real tensors does not reach these kernels.

In reading order:

    first_use         registers the kernels before the first fake on CUDA is made
    register          the table of operators and their kernels
    composites        composites that take another path on CUDA
    ctc_loss          CTC loss
    recurrent_layers  LSTM, GRU and RNN, and their cells
"""
