"""How a fake prints: ``tensor(..., size=(10,), fake=True)``.

Input: a fake. Output: its text, with the parts in the order that torch uses for a meta tensor.
Invariant: what is at its default is left out. Called by: ``FakeTensor.__repr__``.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._torch import autograd


def fake_repr(fake: Any) -> str:
    """The text of `fake`; a parameter gets torch's ``Parameter containing:`` line."""
    text = f"tensor({', '.join(_parts(fake))})"
    if getattr(fake, "_is_param", False):
        return f"Parameter containing:\n{text}"
    return text


def _parts(fake: Any) -> list[str]:
    meta = fake._fake_meta
    parts = ["..."]
    if meta.reported_device.type != "cpu":
        parts.append(f"device='{meta.reported_device}'")
    parts.append(f"size={tuple(meta.size)}")
    if meta.dtype != torch.get_default_dtype():
        parts.append(f"dtype={meta.dtype}")
    if autograd.is_forbidden_view(fake):
        parts.append("grad_fn=<Invalid>")
    elif fake.grad_fn is not None:
        parts.append(f"grad_fn=<{fake.grad_fn.name()}>")
    elif fake.requires_grad:
        parts.append("requires_grad=True")
    return [*parts, "fake=True"]
