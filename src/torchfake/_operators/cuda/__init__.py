"""Operators that C++ computes otherwise on CUDA, run for plain fakes on CUDA as CUDA runs them.

C++ asks a tensor whether it is on CUDA, and a wrapper says that it is not (``_core/devices``). So
it would take the way of other devices: a mask in the dtype of the activations, a norm in seven
parts. Tensors that are saved for the backward pass would be others, and larger.

Input: calls of these operators with a plain fake on CUDA among their tensors. Output: their
results, from the operators that C++ would call for tensors on CUDA. Invariant: where fakes on other
devices, deferred fakes and real tensors are the only tensors, nothing of this runs.

In reading order:

    first_use         registers them before the first fake on CUDA is made
    register          which operators, and the kernel of each
    composites        composites that take another way on CUDA
    ctc_loss          CTC loss
    recurrent_layers  LSTM, GRU and RNN, and their cells
"""
