"""Errors of torch about missing CUDA devices, extended by how to fake these devices.

Input: an error with which a mode is left. Output: the same error; its message names the option.
Invariant: the type of the error and the beginning of its message are torch's.
"""

from __future__ import annotations

_MESSAGES = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver on your system",
    "No CUDA GPUs are available",
)
"""Errors of ``torch.cuda._lazy_init`` in builds without CUDA and on machines without a GPU."""

_REMEDY = "To fake CUDA devices: torchfake.fake_mode(fake_cuda=True)"


def name_the_option(error: BaseException) -> None:
    """Add the remedy to an error about missing CUDA devices; leave others as they are."""
    if type(error) not in (AssertionError, RuntimeError) or len(error.args) != 1:
        return
    text = error.args[0]
    is_known = isinstance(text, str) and any(message in text for message in _MESSAGES)
    if is_known and _REMEDY not in text:
        error.args = (f"{text}. {_REMEDY}",)
