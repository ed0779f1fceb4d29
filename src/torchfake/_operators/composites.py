"""Kernels for operators that C++ would decompose by the wrapper's device or data.

Input: a call of one of these operators with a fake among its tensors. Output: the call's result,
from operators that the dispatcher then sees one by one. Invariant: these kernels run above
autograd, for tensors that carry our dispatch key, and for no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._tensor import known_values
from torchfake._tensor.attention import scaled_dot_product_attention
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy
from torchfake._torch import autograd, dispatch_keys, dispatcher, kernels, subclass
from torchfake._unknown_values import assumptions

aten = torch.ops.aten


def tensor_split(
    redispatch: Callable[..., Any], tensor: torch.Tensor, indices: torch.Tensor, dim: int = 0
) -> Any:
    """``tensor_split`` at indices in a CPU tensor, which C++ reads through a data pointer."""
    indices = subclass.without_transforms(indices)
    if indices.device.type != "cpu":
        raise RuntimeError(
            "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on "
            f"{indices.device}"
        )
    if isinstance(indices, FakeTensor):
        indices = known_values.read_value(indices, "tensor_split()")
    return torch.tensor_split(tensor, indices.tolist(), dim)


def isfinite(redispatch: Callable[..., Any], tensor: torch.Tensor) -> Any:
    """``isfinite``: unknown values are assumed finite. C++ compares a tensor with itself and
    infinity.
    """
    result = redispatch(tensor)
    if isinstance(result, FakeTensor) and not assumptions.may_be_infinite(tensor):
        assumptions.assume(result, True)
    return result


def ctc_loss(
    redispatch: Callable[..., Any],
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *rest: Any,
) -> Any:
    """CTC loss with lengths on the CPU: C++ divides by plain lengths as numbers, but by lengths of
    a subclass as a tensor on the CPU.
    """
    target_lengths = target_lengths.to(log_probs.device)
    return redispatch(log_probs, targets, input_lengths, target_lengths, *rest)


def recurrent_layer(redispatch: Callable[..., Any], *args: Any) -> Any:
    """Recurrent layers with all arguments fake: C++ compares their devices, and the initial state
    that ``nn.LSTM`` makes on its input's device is a real tensor after the mode.
    """
    return redispatch(*(_as_fakes(arg) for arg in args))


def recurrent_layer_of_packed(
    redispatch: Callable[..., Any], data: torch.Tensor, sizes: torch.Tensor, *args: Any
) -> Any:
    """Recurrent layers of packed sequences: C++ reads the batch sizes through a data pointer."""
    args = tuple(_as_fakes(arg) for arg in args)
    return redispatch(_as_fakes(data), _on_host(sizes), *args)


def pack_padded_sequence(
    redispatch: Callable[..., Any], padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> Any:
    """``nn.utils.rnn.pack_padded_sequence``: for each step, the sequences that are long enough."""
    batch, steps = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    known = [int(n) for n in _on_host(lengths).tolist()]
    if len(known) != batch or sorted(known, reverse=True) != known or max(known) > steps:
        raise RuntimeError(
            f"pack_padded_sequence: lengths {known} do not fit a batch of {batch} sequences of "
            f"{steps} steps, or do not decrease; pass enforce_sorted=False to have them sorted"
        )
    by_step = padded.transpose(0, 1) if batch_first else padded
    sizes = [sum(n > step for n in known) for step in range(known[0])]
    rows = [by_step[step, :size] for step, size in enumerate(sizes)]
    return torch.cat(rows), torch.tensor(sizes, dtype=torch.int64, device="cpu")


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
    by_step = [int(n) for n in _on_host(sizes).tolist()]
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


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor with the value of `tensor`."""
    if isinstance(tensor, FakeTensor):
        return known_values.read_value(tensor, "a packed sequence")
    return tensor


def _as_fakes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_fakes(item) for item in value]
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return fake_copy(value, known=True) if is_real and not value.is_meta else value


def group_norm(
    redispatch: Callable[..., Any],
    tensor: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """``group_norm`` on the CPU, which has a kernel for channels last: C++ asks for the device."""
    memory_format = kernels.memory_format_of(tensor)
    is_valid = num_groups > 0 and tensor.dim() > 1 and tensor.shape[1] % num_groups == 0
    if memory_format == torch.contiguous_format or tensor.device.type != "cpu" or not is_valid:
        return redispatch(tensor, num_groups, weight, bias, eps, cudnn_enabled)
    tensor = tensor.contiguous(memory_format=memory_format)
    scale, shift = (None if t is None else t.contiguous() for t in (weight, bias))
    sizes = tensor.shape[0], tensor.shape[1], tensor.shape[2:].numel()
    return aten.native_group_norm.default(tensor, scale, shift, *sizes, num_groups, eps)[0]


def native_group_norm_backward(
    redispatch: Callable[..., Any], grad: torch.Tensor, tensor: torch.Tensor, *args: Any
) -> Any:
    """The backward pass of ``group_norm``. C++ makes gradient and input contiguous unless the
    gradient is on the CPU. (Where the input needs no gradient, torch 2.13's channels-last kernel
    crashes the process; this one does not.)
    """
    *_, wanted = args
    if not wanted[0] or grad.device.type != "cpu":
        return redispatch(grad, tensor, *args)
    saved = autograd.saved_by_running_node_of("NativeGroupNormBackward0", "input")
    if saved and saved[0].shape == tensor.shape:
        memory_format = kernels.memory_format_of(saved[0])
        grad = grad.contiguous(memory_format=memory_format)
        tensor = saved[0].contiguous(memory_format=memory_format)
    return redispatch(grad, tensor, *args)


def native_channel_shuffle(
    redispatch: Callable[..., Any], tensor: torch.Tensor, groups: int
) -> Any:
    """Channel shuffle on the CPU, whose kernel keeps the memory format. C++ would decompose it."""
    result = redispatch(tensor, groups)
    if tensor.device.type != "cpu":
        return result
    return result.contiguous(memory_format=kernels.memory_format_of(tensor))


def max_pool1d(
    redispatch: Callable[..., Any], tensor: torch.Tensor, *window: Any, **named: Any
) -> Any:
    """``max_pool1d`` without a gradient, contiguous on the CPU: for subclasses C++ takes the kernel
    of two dims instead.
    """
    if tensor.device.type == "cpu" and not autograd.needs_gradient(tensor):
        tensor = tensor.contiguous()
    return redispatch(tensor, *window, **named)


def transformer_encoder_layer(
    redispatch: Callable[..., Any], src: torch.Tensor, dim: int, num_heads: int, *args: Any
) -> Any:
    """aten/src/ATen/native/transformers/transformer.cpp: the fused kernel of
    ``nn.TransformerEncoderLayer``, composed under autocast, which casts the operators that the
    kernel calls but not the kernel itself.
    """
    if src.is_nested or not src.numel() or not torch.is_autocast_enabled(src.device.type):
        return redispatch(src, dim, num_heads, *args)
    projections, (use_gelu, norm_first, eps, *weights), mask = args[:4], args[4:15], args[15:]
    mask, mask_type = (*mask, None, None)[:2]

    def norm(x: torch.Tensor, i: int) -> torch.Tensor:
        return torch.layer_norm(x, (dim,), weights[i], weights[i + 1], eps)

    x = norm(src, 0) if norm_first else src
    attend: Callable[..., Any] = torch._native_multi_head_attention
    x = attend(x, x, x, dim, num_heads, *projections, mask, False, True, mask_type)[0].add_(src)
    x = x if norm_first else norm(x, 0)
    rows = (norm(x, 2) if norm_first else x).reshape(-1, dim)
    hidden = torch._addmm_activation(weights[5], rows, weights[4].t(), use_gelu=use_gelu)
    hidden = hidden.view(*x.shape[:-1], -1)
    result = torch.nn.functional.linear(hidden, weights[6], weights[7]).add_(x)
    return result if norm_first else norm(result, 2)


def set_to_source(
    redispatch: Callable[..., Any],
    tensor: torch.Tensor,
    source: torch.Tensor,
    *view: Any,
    **named: Any,
) -> Any:
    """``set_`` to a view of another tensor's memory: C++ would use the wrapper's empty storage."""
    return tensor.set_(source.untyped_storage(), *view, **named)


def _on_values(operator: Any) -> Callable[..., Any]:
    """A kernel that runs `operator`, which accesses memory by address, on the known values: its
    arguments are integers of a ``SobolEngine``, whose values are always known.
    """
    writes_first = operator._schema.arguments[0].alias_info is not None

    def kernel(redispatch: Callable[..., Any], *args: Any, **named: Any) -> Any:
        values = [
            known_values.read_value(arg, str(operator)) if isinstance(arg, FakeTensor) else arg
            for arg in args
        ]
        with dispatcher.as_eager():
            if writes_first:
                values[0] = values[0].clone()
            results = operator(*values, **named)
        if writes_first:
            return args[0].copy_(results)
        if any(isinstance(arg, FakeTensor) and arg._fake_storage.deferred for arg in args):
            return tuple(result.clone() for result in results)
        return tuple(fake_copy(result, known=True) for result in results)

    return kernel


def register_kernels() -> None:
    """Register all kernels of this file, which takes milliseconds."""
    register = dispatch_keys.WRAPPER_KEY.register
    register(aten._transformer_encoder_layer_fwd.default, transformer_encoder_layer)
    for operator in (
        aten._sobol_engine_draw.default, aten._sobol_engine_ff_.default,
        aten._sobol_engine_scramble_.default, aten._sobol_engine_initialize_state_.default,
    ):  # fmt: skip
        register(operator, _on_values(operator))
    register(aten.set_.source_Tensor_storage_offset, set_to_source)
    register(aten.scaled_dot_product_attention.default, scaled_dot_product_attention)
    register(aten.ctc_loss.Tensor, ctc_loss)
    register(aten.isfinite.default, isfinite)
    register(aten.group_norm.default, group_norm)
    register(aten.native_group_norm_backward.default, native_group_norm_backward)
    register(aten.native_channel_shuffle.default, native_channel_shuffle)
    register(aten.max_pool1d.default, max_pool1d)
    register(aten.tensor_split.tensor_indices_or_sections, tensor_split)
    for packet in (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu):
        register(packet.input, recurrent_layer)
        register(packet.data, recurrent_layer_of_packed)
    register(aten._pack_padded_sequence.default, pack_padded_sequence)
    register(aten._pad_packed_sequence.default, pad_packed_sequence)


dispatch_keys.WRAPPER_KEY.before_use(register_kernels)
