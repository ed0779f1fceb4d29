"""Registers the kernels of this package before the first plain fake on CUDA is made.

Input: none. Output: kernels for ``CUDA_WRAPPER_KEY``. Invariant: the kernels are not imported
before they are registered: most programs have no fakes on CUDA.
"""

from __future__ import annotations

import torch

from torchfake._torch import dispatch_keys, kernels

_aten = torch.ops.aten

COMPOSED_ELSEWHERE = (_aten._fused_rms_norm.default, _aten.mish_backward.default)
"""Operators that have a kernel on CUDA and are decomposed on devices without one. C++ would take a
wrapper for a tensor on a device without a kernel."""


def _register_kernels() -> None:
    from torchfake._operators.cuda import register

    register.register_kernels()
    for op in COMPOSED_ELSEWHERE:
        kernels.run_whole_on_cuda(op)


dispatch_keys.CUDA_WRAPPER_KEY.before_use(_register_kernels)
for _op in COMPOSED_ELSEWHERE:
    kernels.declare_on_cuda(_op)  # before any code asks whether C++ decomposes the operator
