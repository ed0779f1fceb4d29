"""Kernels of recurrent layers and packed sequences, whose lengths C++ reads by address.

Input: a call of one of these operators with a fake among its tensors. Output: the call's result.
Invariant: lengths and batch sizes have known values, and are read as these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy
from torchfake._tensor.method_arguments import scalar_type


def recurrent_layer(redispatch: Callable[..., Any], tensor: torch.Tensor, *rest: Any) -> Any:
    """Recurrent layers with all arguments fake: C++ compares their devices, and the initial state
    that ``nn.LSTM`` makes on its input's device is a real tensor outside a mode.
    """
    tensor, *args = (as_fakes(arg) for arg in (tensor, *rest))
    check_attributes(tensor, *args[:2])
    return _without_values(redispatch(tensor, *args))


def _without_values(results: Any) -> Any:
    """The results on the CPU, of unknown values: C++ composes the layer in another order for fakes
    than for CPU tensors, so the last bits would be others.
    """
    for result in results:
        if isinstance(result, FakeTensor) and result.device.type == "cpu":
            result._fake_storage.value = None
    return results


def check_attributes(
    tensor: torch.Tensor, states: Any, params: Any, *, compares_dtypes: bool = False
) -> None:
    """aten/src/ATen/native/RNN.h, check_attributes, whose error would name carriers."""
    states = [states] if isinstance(states, torch.Tensor) else states
    for name, tensors in (("hidden", states), ("parameter", params)):
        for other in tensors:
            if other.device != tensor.device:
                raise RuntimeError(
                    f"Input and {name} tensors are not at the same device, found input tensor at "
                    f"{tensor.device} and {name} tensor at {other.device}"
                )
            if compares_dtypes and other.dtype != tensor.dtype:
                raise RuntimeError(
                    f"Input and {name} tensors are not the same dtype, found input tensor with "
                    f"{scalar_type(tensor.dtype)} and {name} tensor with {scalar_type(other.dtype)}"
                )


def recurrent_layer_of_packed(
    redispatch: Callable[..., Any], data: torch.Tensor, sizes: torch.Tensor, *rest: Any
) -> Any:
    """Recurrent layers of packed sequences: C++ reads the batch sizes through a data pointer."""
    data, *args = (as_fakes(arg) for arg in (data, *rest))
    check_attributes(data, *args[:2])
    return _without_values(redispatch(data, _on_host(sizes), *args))


def pack_padded_sequence(
    redispatch: Callable[..., Any], padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> Any:
    """``nn.utils.rnn.pack_padded_sequence``: each step has the rows of the sequences that last."""
    batch, steps = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    known = _lengths_on_host(lengths)
    _check_lengths(padded, known, batch)
    by_step = padded.transpose(0, 1) if batch_first else padded
    sizes = [sum(n > step for n in known) for step in range(known[0])]
    rows = [by_step[step, :size] for step, size in enumerate(sizes[:steps])]
    return torch.cat(rows), torch.tensor(sizes, dtype=torch.int64, device="cpu")


def _check_lengths(padded: torch.Tensor, lengths: list[int], batch: int) -> None:
    """aten/src/ATen/native/PackedSequence.cpp: the checks, in order."""
    if padded.numel() == 0:
        raise RuntimeError("Cannot pack empty tensors.")
    if len(lengths) != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} "
            f"(batch_size={batch})"
        )
    if min(lengths) <= 0:
        raise RuntimeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' "
            "that is <= 0"
        )
    if sorted(lengths, reverse=True) != lengths:
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You "
            "can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to "
            "sidestep this requirement if you do not need ONNX exportability."
        )


def pad_packed_sequence(
    redispatch: Callable[..., Any],
    data: torch.Tensor,
    sizes: torch.Tensor,
    batch_first: bool,
    padding: float,
    total_length: int,
) -> Any:
    """``nn.utils.rnn.pad_packed_sequence``: each step padded to the batch, and the steps to
    `total_length`.
    """
    by_step = _lengths_on_host(sizes)
    batch, steps = by_step[0], max(len(by_step), total_length)
    if 0 < total_length < len(by_step):
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, but "
            f"got total_length={total_length} and max sequence length being {len(by_step)}"
        )

    def filled(num_rows: int) -> torch.Tensor:
        return data.new_full((num_rows, *data.shape[1:]), padding)

    rows = [torch.cat([row, filled(batch - len(row))]) for row in data.split(by_step)]
    padded = torch.stack(rows + [filled(batch)] * (steps - len(rows)))
    lengths = [sum(n > i for n in by_step) for i in range(batch)]
    result = padded.transpose(0, 1) if batch_first else padded
    return result, torch.tensor(lengths, dtype=torch.int64, device="cpu")


def _lengths_on_host(lengths: torch.Tensor) -> list[int]:
    """Known lengths, checked as by checkLongTensor in aten/src/ATen/native/PackedSequence.cpp."""
    if lengths.dim() != 1 or lengths.device.type != "cpu" or lengths.dtype != torch.int64:
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D {lengths.device} {scalar_type(lengths.dtype)} tensor"
        )
    return [int(n) for n in _on_host(lengths).tolist()]


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor with the value of `tensor`."""
    if isinstance(tensor, FakeTensor):
        return known_values.read_value(tensor, "a packed sequence")
    return tensor


def as_fakes(value: Any) -> Any:
    """`value` with fakes of known value in place of real tensors."""
    if isinstance(value, (list, tuple)):
        return [as_fakes(item) for item in value]
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return fake_copy(value, known=True) if is_real and not value.is_meta else value
