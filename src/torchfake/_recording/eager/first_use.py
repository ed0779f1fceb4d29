"""Registers the kernels of this package before the first operation is recorded.

Input: none. Output: kernels for ``RECORDING_KEY``; those for tangents once there may be a tangent.
Invariant: the kernels are imported when they are registered: most programs record nothing.
"""

from __future__ import annotations

from torchfake._torch import dispatch_keys, dispatcher


def _register_kernels() -> None:
    from torchfake._recording.eager import register

    register.register_kernels()


def _register_for_tangents() -> None:
    from torchfake._recording.eager import register

    register.register_for_tangents()


dispatch_keys.RECORDING_KEY.before_use(_register_kernels)
dispatcher.before_tangents.append(_register_for_tangents)
