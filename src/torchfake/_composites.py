"""Operators that torch takes apart in C++ by looking at the wrapper's device or data.

Enters: a call of one of them with a fake among its tensors. Leaves: its result, from operators
that the dispatcher then sees one by one. Invariant: these run above autograd, on tensors that
carry our dispatch key, and on no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake import _private, _values
from torchfake._attention import attention
from torchfake._tensor import FakeTensor, fake_twin

aten = torch.ops.aten


def tensor_split(
    below: Callable[..., Any], tensor: torch.Tensor, places: torch.Tensor, dim: int = 0
) -> Any:
    """Splits at places that a CPU tensor holds; C++ reads them through a data pointer."""
    if places.device.type != "cpu":
        raise RuntimeError(
            "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on "
            f"{places.device}"
        )
    known = _values.read(places, "tensor_split()") if isinstance(places, FakeTensor) else places
    return torch.tensor_split(tensor, known.tolist(), dim)


def recurrent(below: Callable[..., Any], *args: Any) -> Any:
    """Recurrent layers compare C++ devices. ``nn.LSTM`` makes its own initial state, on the device
    its input reports, and that is a real tensor once the mode has ended.
    """
    return below(*(_as_fakes(arg) for arg in args))


def _as_fakes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_fakes(item) for item in value]
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return fake_twin(value, known=True) if is_real and not value.is_meta else value


_private.own_kernel(aten.scaled_dot_product_attention.default, attention)
_private.own_kernel(aten.tensor_split.tensor_indices_or_sections, tensor_split)
for _packet in (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu):
    _private.own_kernel(_packet.input, recurrent)
    _private.own_kernel(_packet.data, recurrent)
