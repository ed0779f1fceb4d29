"""Operators that C++ computes otherwise for tensor subclasses, recorded as eager computes them.

Input: calls of these operators while operations are recorded, with fakes or real tensors. Output:
their results. Invariant: what is recorded has the bits of eager; the device of a fake is the one
that it reports.

In reading order:

    register          which operators, and the kernel of each
    composites        composites that C++ would decompose otherwise
    recurrent_layers  LSTM, GRU and RNN, likewise
    derivatives       gradients and tangents, of which C++ has another formula for subclasses
"""

from __future__ import annotations

from torchfake._torch import dispatch_keys, dispatcher


def _register_kernels() -> None:
    """Register the kernels, which are imported then: most programs record nothing."""
    from torchfake._recording.eager import register

    register.register_kernels()


def _register_for_tangents() -> None:
    from torchfake._recording.eager import register

    register.register_for_tangents()


dispatch_keys.RECORDING_KEY.before_use(_register_kernels)
dispatcher.before_tangents.append(_register_for_tangents)
