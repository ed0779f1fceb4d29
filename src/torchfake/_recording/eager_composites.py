"""Composites that C++ decomposes otherwise for tensor subclasses, or for another device than the
fake's: decomposed as for plain tensors, so that what is recorded has the bits of eager.

Input: a call of one of these operators while operations are recorded, with fakes or real tensors.
Output: its result, from the operators that eager mode would run. Invariant: a composite that eager
mode decomposes alike for all tensors is not here; tests/opinfo compares all of torch's database,
recorded, with eager. Called by: torch's dispatcher, which the kernels are registered with when this
file is imported (by ``torchfake/__init__``).

They run while a deferred mode is on, and for a deferred fake outside of all modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfake._core import modes, source_location
from torchfake._core.schemas import traits_of
from torchfake._graph.operations import Op, Read
from torchfake._operators import composites
from torchfake._operators.operator_call import mutated_arguments, tensors_in
from torchfake._recording import recurrent_layers
from torchfake._recording.arguments import (
    deferred_fakes,
    has_unknown_value,
    have_values,
    is_materialized,
    is_real,
    with_real_tensors,
)
from torchfake._recording.graph_builder import add_write, contents_before_write, recorded_arg
from torchfake._tensor.attention import scaled_dot_product_attention
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import autograd, dispatcher
from torchfake.errors import UnknownValueError

aten = torch.ops.aten
Redispatch = Callable[..., Any]


def _computes_vectors(matrix: Tensor) -> bool:
    """Whether eager computes vectors, too: for derivatives, and for the tensors of ``vmap``."""
    return autograd.needs_gradient(matrix) or autograd.is_mapped(matrix)


def svdvals(redispatch: Redispatch, matrix: Tensor, driver: str | None = None) -> Tensor:
    """aten/src/ATen/native/BatchLinearAlgebra.cpp: for a subclass, C++ asks for vectors too."""
    if matrix.dim() >= 2 and not _computes_vectors(matrix):
        run = aten._linalg_svd.default
        values: Tensor = run(_autocast(matrix), False, False, driver=driver)[1]
        return values
    return redispatch(matrix, driver=driver)  # type: ignore[no-any-return]


def eigvalsh(redispatch: Redispatch, matrix: Tensor, uplo: str = "L") -> Tensor:
    """The same."""
    if matrix.dim() >= 2 and not _computes_vectors(matrix):
        values: Tensor = aten._linalg_eigh.default(_autocast(matrix), uplo, False)[0]
        return values
    return redispatch(matrix, uplo)  # type: ignore[no-any-return]


def matmul(redispatch: Redispatch, a: Tensor, b: Tensor) -> Tensor:
    """aten/src/ATen/native/LinearAlgebra.cpp: batches of one matrix are multiplied as a matrix if
    that needs a gradient, or is a subclass; else they are expanded.
    """
    if a.dim() == b.dim() == 2:  # the most frequent, by the shortest way
        return a.mm(b)
    if a.dim() == b.dim() == 3 and a.shape[0] != b.shape[0]:
        if a.shape[0] == 1 and not a.requires_grad:
            a = a.expand(b.shape[0], -1, -1)
        elif b.shape[0] == 1 and not b.requires_grad:
            b = b.expand(a.shape[0], -1, -1)
    return redispatch(a, b)  # type: ignore[no-any-return]


_NO_REDUCTION, _MEAN = 0, 1  # c10: Reduction.h


def ctc_loss(
    redispatch: Redispatch,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    """aten/src/ATen/native/LossCTC.cpp: of plain tensors the lengths are read, which decide the
    size of a table that is kept for the backward pass.
    """
    lengths = [_read_integers(n) for n in (input_lengths, target_lengths)]
    if None in lengths or log_probs.device.type != "cpu":
        args = log_probs, targets, input_lengths, target_lengths
        return redispatch(*args, blank, reduction, zero_infinity)  # type: ignore[no-any-return]
    kept = _NO_REDUCTION if reduction == _MEAN else reduction
    targets = _recorded(targets, log_probs if is_deferred_fake(log_probs) else None)
    loss: Tensor = aten.ctc_loss.IntList(log_probs, targets, *lengths, blank, kept, zero_infinity)
    if reduction == _MEAN:  # C++ would write the lengths to memory of the carrier device
        divisors = torch.tensor(lengths[1], dtype=loss.dtype, device="cpu").clamp_min(1)
        return (loss.reshape(-1) / divisors).mean()
    return loss


def _read_integers(tensor: Tensor) -> list[int] | None:
    """The integers in a tensor, or None if their values are not known."""
    if tensor.is_floating_point() or tensor.is_meta:
        return None
    try:
        return tensor.reshape(-1).tolist()
    except UnknownValueError:
        return None


def cross_entropy_loss(
    redispatch: Redispatch,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """aten/src/ATen/native/LossNLL.cpp: of plain tensors, the weights of the targets that are not
    ignored are selected and summed; of others, those of all, some of them set to zero.
    """
    selects = label_smoothing > 0 and reduction == _MEAN and target.shape != scores.shape
    if weight is None or not selects or not have_values((scores, target, weight)):
        options = reduction, ignore_index, label_smoothing
        return redispatch(scores, target, weight, *options)  # type: ignore[no-any-return]
    scores, weight = _autocast(scores), _autocast(weight)
    dim = 0 if scores.dim() == 1 else 1
    log_probs = torch.log_softmax(scores, dim, dtype=scores.dtype)
    loss: Tensor = aten.nll_loss_nd.default(log_probs, target, weight, reduction, ignore_index)
    shape = [-1 if i == dim else 1 for i in range(scores.dim())]
    is_ignored = target == ignore_index
    smooth = (-(log_probs * weight.view(shape)).sum(dim)).masked_fill_(is_ignored, 0.0)
    kept = weight.gather(0, target.masked_select(~is_ignored).flatten())
    smooth = smooth.sum() / kept.sum()
    return loss * (1 - label_smoothing) + smooth * (label_smoothing / scores.shape[dim])


def embedding_bag(
    redispatch: Redispatch, weight: Tensor, indices: Tensor, offsets: Tensor, *args: Any
) -> Any:
    """aten/src/ATen/native/EmbeddingBag.cpp. In inference mode C++ does not decompose it before it
    is dispatched, and would on meta tensors, for which the results have other shapes.
    """
    if not torch.is_inference_mode_enabled() or weight.requires_grad:
        return redispatch(weight, indices, offsets, *args)
    defaults: tuple[Any, ...] = (False, 0, False, None, False, None)
    *options, padding = (*args, *defaults[len(args) :])
    padding = -1 if padding is None else padding % weight.shape[0]
    forward = aten._embedding_bag_forward_only.default
    return forward(weight, indices.contiguous(), offsets.contiguous(), *options, padding)


def mish_backward(redispatch: Redispatch, grad: Tensor, tensor: Tensor) -> Tensor:
    """A composite that is one kernel on the CPU: recorded as that."""
    is_deferred = is_deferred_fake(tensor) or is_deferred_fake(grad)
    if not is_deferred or tensor.device.type != "cpu" or torch.is_grad_enabled():
        return redispatch(grad, tensor)  # type: ignore[no-any-return]
    op = aten.mish_backward.default
    return FakeTensor.__torch_dispatch__(op, (), (grad, tensor))  # type: ignore[no-any-return]


def with_recorded_arguments(redispatch: Redispatch, *args: Any, **kwargs: Any) -> Any:
    """Composites that make a tensor on the device of their arguments, and compare the devices of
    both. What they make is a fake: so must the arguments be.
    """
    fakes = deferred_fakes(tensors_in(args, kwargs))
    like = fakes[0] if fakes else None
    recorded = {name: _recorded(value, like) for name, value in kwargs.items()}
    return redispatch(*(_recorded(value, like) for value in args), **recorded)


def _autocast(matrix: Tensor) -> Tensor:
    """The argument as autocast on the CPU would give it to the composite: in float32."""
    is_lower = matrix.dtype in (torch.bfloat16, torch.float16)
    if is_lower and matrix.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        return matrix.float()
    return matrix


def _recorded(value: Any, like: Tensor | None) -> Any:
    """A real tensor as a deferred one: in a mode, or beside `like`, which is one."""
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or value.is_meta:
        return value
    if modes.current() is not None:
        return value.clone()
    return value if like is None else like.new_empty(value.shape, dtype=value.dtype).copy_(value)


# Derivatives that C++ computes by another formula for tensor subclasses: what is recorded last for
# such a result is the call itself, done as eager mode does it.


def cumprod_backward(redispatch: Redispatch, *args: Any) -> Tensor:
    """torch/csrc/autograd/FunctionsManual.cpp: sums are added up in another order."""
    if torch.is_grad_enabled() and not _are_in_transform(args):  # it may be differentiated again
        return _cumprod_gradient(redispatch, *args)
    recorded = _recorded_arguments(aten.cumprod_backward.default, args)
    result: Tensor = redispatch(*args)
    if recorded is not None:
        _overwrite(result, _write_cumprod_backward, recorded, {})
    return result


def _cumprod_gradient(
    redispatch: Redispatch, grad: Tensor, tensor: Tensor, dim: int, output: Tensor
) -> Tensor:
    """The formulas of plain tensors, without zeros and with some: read as in eager."""
    if not _is_known(tensor):
        return redispatch(grad, tensor, dim, output)  # type: ignore[no-any-return]
    if tensor.numel() <= 1 or tensor.shape[dim] == 1:
        return grad
    if _has_no_zeros(tensor):
        weights = output.conj() * grad
        return weights.flip(dim).cumsum(dim).flip(dim).div(tensor.conj())
    products = _products_of_others(tensor.conj(), dim)
    sums = [(grad.narrow(dim, i, p.shape[dim]) * p).sum(dim) for i, p in enumerate(products)]
    return torch.stack(sums, dim)


def _products_of_others(tensor: Tensor, dim: int) -> Iterator[Tensor]:
    """Of each element and those behind it: its product with all before, but for the element."""
    last = tensor.shape[dim] - 1
    before = tensor.new_ones(()).expand_as(tensor.narrow(dim, 0, 1))
    for i in range(last):
        after = tensor.narrow(dim, i + 1, last - i).cumprod(dim)
        if i:
            before = tensor.narrow(dim, 0, i).prod(dim, keepdim=True)
            after = before.expand_as(after) * after
        yield torch.cat((before, after), dim)
    yield tensor.narrow(dim, 0, last).prod(dim, keepdim=True)


def _write_cumprod_backward(target: Tensor, *args: Any) -> None:
    target.copy_(aten.cumprod_backward.default(*args))


def with_tangents_of_eager(op: Any) -> Callable[..., Any]:
    """A kernel for an operator whose tangents, in a dual level, C++ computes by another formula."""

    def write_tangent(target: Tensor, at: int, args: Any, tangents: Any, **options: Any) -> None:
        target.copy_(autograd.tangent_of_result(op, at, args, tangents, options))

    def kernel(redispatch: Redispatch, *args: Any, **options: Any) -> Any:
        tangents = [autograd.tangent_of(arg) for arg in args]
        recorded = None
        if any(tangent is not None for tangent in tangents):
            recorded = _recorded_arguments(op, args, tangents)
        result = redispatch(*args, **options)
        if recorded is not None:
            split = recorded[: len(args)], recorded[len(args) :]
            for i, part in enumerate((result,) if isinstance(result, Tensor) else result):
                _overwrite(autograd.tangent_of(part), write_tangent, (i, *split), options)
        return result

    write_tangent.__qualname__ = f"tangent of {op}"
    return kernel


def prod(redispatch: Redispatch, *args: Any, **options: Any) -> Tensor:
    """torch/csrc/autograd/FunctionsManual.cpp: where there are no zeros, the gradient is a quotient
    by the tensor; of subclasses it is always a product of the others.
    """
    overload = aten.prod.dim_int if len(args) > 1 else aten.prod.default
    result: Tensor = _prods[overload](redispatch, *args, **options)
    node = result.grad_fn
    if node is None or autograd.is_mapped(args[0]):
        return result
    recorded = _recorded_arguments(overload, args)

    def overwrite(gradients: tuple[Any, ...], incoming: tuple[Any, ...]) -> Any:
        if gradients[0] is None:
            return None
        if torch.is_grad_enabled():  # it may be differentiated again
            return _prod_gradient(gradients[0], incoming[0], *args[1:]), *gradients[1:]
        rest = _recorded_arguments(overload, (incoming[0],))
        if recorded is not None and rest is not None:
            call = overload, rest[0], recorded
            _overwrite(gradients[0], _write_prod_backward, call, options)
        return None

    if not has_unknown_value(autograd.without_levels(args[0])):
        args = (None, *args[1:])  # the node, which holds the hook, has saved the tensor itself
        node.register_hook(overwrite)
    return result


def _prod_gradient(
    of_subclasses: Tensor, grad: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor:
    """The formula of plain tensors, which depends on whether there are zeros: read as in eager."""
    tensor, result = autograd.saved_by_running_node("self", "result")
    tensor = tensor.to(grad.dtype)
    if not tensor.dim() or autograd.is_in_transform(tensor) or not _has_no_zeros(tensor):
        return of_subclasses
    if dim is not None and not keepdim:
        grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
    return grad * (result / tensor).conj()


def _are_in_transform(args: Sequence[Any]) -> bool:
    return any(isinstance(arg, Tensor) and autograd.is_in_transform(arg) for arg in args)


def _is_known(tensor: Tensor) -> bool:
    return not has_unknown_value(autograd.without_levels(tensor))


def _has_no_zeros(tensor: Tensor) -> bool:
    """Whether no element is known to be zero: read as eager reads it."""
    with autograd.no_grad():
        return _is_known(tensor) and not (tensor == 0).any().item()


def _write_prod_backward(target: Tensor, op: Any, grad: Tensor, args: Any, **options: Any) -> None:
    with torch.enable_grad():
        leaf = args[0].detach().requires_grad_()
        product = op(leaf, *args[1:], **options)
    target.copy_(torch.autograd.grad(product, leaf, grad)[0])


def _recorded_arguments(op: Any, args: Any, tangents: Sequence[Any] = ()) -> list[Any] | None:
    """The arguments as they are recorded, before the call; None if not all of them can be."""
    every = [with_real_tensors(arg) for arg in (*args, *tangents)]
    if any(isinstance(arg, Tensor) and _cannot_be_recorded(arg) for arg in every):
        return None
    for i, arg in enumerate(every):
        if any(arg is t for t in mutated_arguments(traits_of(op), args, {})) and is_real(arg):
            with dispatcher.as_eager():
                every[i] = arg.clone()  # running statistics outside of the mode
    return [recorded_arg(op, arg) for arg in every]


def _cannot_be_recorded(tensor: Tensor) -> bool:
    """Whether it has no value, or is a tensor of a transform of ``torch.func``, in which C++ takes
    all tensors for subclasses anyway.
    """
    return has_unknown_value(tensor) or autograd.is_transformed(tensor)


def _overwrite(result: Any, function: Any, args: Any, options: Any) -> None:
    """Record that `function` writes the values of `result`, which no other tensor views."""
    if not is_deferred_fake(result) or is_materialized(result) or result._fake_meta.zero:
        return
    target = Read(contents_before_write(result), result._fake_meta)
    op = Op(function, (target, *args), dict(options), source_location.caller_location(3))
    add_write(op, result._fake_storage)


_KERNELS: dict[Any, Callable[..., Any]] = {
    aten.linalg_svdvals.default: svdvals,
    aten.linalg_eigvalsh.default: eigvalsh,
    aten.matmul.default: matmul,
    aten.ctc_loss.Tensor: ctc_loss,
    aten.cumprod_backward.default: cumprod_backward,
    aten.cross_entropy_loss.default: cross_entropy_loss,
    aten.embedding_bag.default: embedding_bag,
    aten.embedding_bag.padding_idx: embedding_bag,
    aten.group_norm.default: composites.group_norm,
    aten.native_group_norm_backward.default: composites.native_group_norm_backward,
    aten._transformer_encoder_layer_fwd.default: composites.transformer_encoder_layer,
    aten.mish_backward.default: mish_backward,
    aten.prod.default: prod,
    aten.prod.dim_int: prod,
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
}
_HAVE_OTHER_TANGENTS = (
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats, aten._batch_norm_with_update.default,
    aten.native_layer_norm.default, aten.native_group_norm.default,
)  # fmt: skip
_prods = {op: with_tangents_of_eager(op) for op in (aten.prod.default, aten.prod.dim_int)}
_COMPARE_DEVICES = (aten.quantile, aten.nanquantile, aten.linalg_matrix_rank, aten.stft)

recurrent_layers.register_kernels()
for _op, _kernel in _KERNELS.items():
    dispatcher.RECORDING_KEY.register(_op, _kernel)
for _op in _HAVE_OTHER_TANGENTS:
    dispatcher.RECORDING_KEY.register(_op, with_tangents_of_eager(_op))
for _packet in _COMPARE_DEVICES:
    for _name in _packet.overloads():
        _overload = getattr(_packet, _name)
        if not any(a.is_out for a in _overload._schema.arguments):
            dispatcher.RECORDING_KEY.register(_overload, with_recorded_arguments)
