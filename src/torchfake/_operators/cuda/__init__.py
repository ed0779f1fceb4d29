"""Operators that C++ computes otherwise on CUDA, run for plain fakes on CUDA as CUDA runs them.

C++ asks a tensor whether it is on CUDA, and a wrapper says that it is not (``_core/devices``). So
it would take the way of other devices: a mask in the dtype of the activations, a norm in seven
parts. Tensors that are saved for the backward pass would be others, and larger.

Input: calls of these operators with a plain fake on CUDA among their tensors. Output: their
results, from the operators that C++ would call for tensors on CUDA. Invariant: where fakes on other
devices, deferred fakes and real tensors are the only tensors, nothing of this runs.

In reading order:

    register          which operators, and the kernel of each
    composites        composites that take another way on CUDA
    ctc_loss          CTC loss
    recurrent_layers  LSTM, GRU and RNN, and their cells
"""

from __future__ import annotations

import torch

from torchfake._torch import dispatch_keys, kernels

_aten = torch.ops.aten

COMPOSED_ELSEWHERE = (_aten._fused_rms_norm.default, _aten.mish_backward.default)
"""Operators that CUDA has a kernel for, and that are composed where there is none. A wrapper would
be taken for a tensor of such a device."""


def _register_kernels() -> None:
    """Register the kernels, which are imported then: most programs have no fakes on CUDA."""
    from torchfake._operators.cuda import register

    register.register_kernels()
    for op in COMPOSED_ELSEWHERE:
        kernels.run_whole_on_cuda(op)


dispatch_keys.CUDA_WRAPPER_KEY.before_use(_register_kernels)
for _op in COMPOSED_ELSEWHERE:
    kernels.declare_on_cuda(_op)  # before anybody asks whether C++ composes it
