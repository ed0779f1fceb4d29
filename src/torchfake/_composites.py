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


def packed(below: Callable[..., Any], data: torch.Tensor, sizes: torch.Tensor, *args: Any) -> Any:
    """Packed sequences: C++ reads the batch sizes through a data pointer."""
    args = tuple(_as_fakes(arg) for arg in args)
    return below(_as_fakes(data), _on_host(sizes), *args)


def pack(
    below: Callable[..., Any], padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> Any:
    """``pack_padded_sequence``: rows of the batch that are still running, step after step."""
    batch, steps = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    running = [int(n) for n in _on_host(lengths).tolist()]
    if len(running) != batch or sorted(running, reverse=True) != running or max(running) > steps:
        raise RuntimeError(
            f"pack_padded_sequence: lengths {running} do not fit a batch of {batch} sequences of "
            f"{steps} steps, or do not decrease; pass enforce_sorted=False to have them sorted"
        )
    by_step = padded.transpose(0, 1) if batch_first else padded
    sizes = [sum(n > step for n in running) for step in range(running[0])]
    rows = [by_step[step, :size] for step, size in enumerate(sizes)]
    return torch.cat(rows), torch.tensor(sizes, dtype=torch.int64, device="cpu")


def unpack(
    below: Callable[..., Any],
    data: torch.Tensor,
    sizes: torch.Tensor,
    batch_first: bool,
    padding: float,
    total_length: int,
) -> Any:
    """``pad_packed_sequence``: each step padded to the batch, and the steps to the length."""
    running = [int(n) for n in _on_host(sizes).tolist()]
    batch, steps = running[0], max(len(running), total_length)
    if 0 < total_length < len(running):
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, but "
            f"got total_length={total_length} and max sequence length being {len(running)}"
        )

    def filled(num_rows: int) -> torch.Tensor:
        return data.new_full((num_rows, *data.shape[1:]), padding)

    rows = [torch.cat([row, filled(batch - len(row))]) for row in data.split(running)]
    padded = torch.stack(rows + [filled(batch)] * (steps - len(rows)))
    lengths = [sum(n > i for n in running) for i in range(batch)]
    result = padded.transpose(0, 1) if batch_first else padded
    return result, torch.tensor(lengths, dtype=torch.int64, device="cpu")


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return _values.read(tensor, "a packed sequence") if isinstance(tensor, FakeTensor) else tensor


def _as_fakes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_fakes(item) for item in value]
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return fake_twin(value, known=True) if is_real and not value.is_meta else value


def set_to_place(
    below: Callable[..., Any], tensor: torch.Tensor, source: torch.Tensor, *place: Any, **named: Any
) -> Any:
    """``set_`` to a place in another tensor's memory: C++ takes the wrapper's, nobody's."""
    return tensor.set_(source.untyped_storage(), *place, **named)


_private.OWN_KEY.register(aten.set_.source_Tensor_storage_offset, set_to_place)
_private.OWN_KEY.register(aten.scaled_dot_product_attention.default, attention)
_private.OWN_KEY.register(aten.tensor_split.tensor_indices_or_sections, tensor_split)
for _packet in (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu):
    _private.OWN_KEY.register(_packet.input, recurrent)
    _private.OWN_KEY.register(_packet.data, packed)
_private.OWN_KEY.register(aten._pack_padded_sequence.default, pack)
_private.OWN_KEY.register(aten._pad_packed_sequence.default, unpack)
