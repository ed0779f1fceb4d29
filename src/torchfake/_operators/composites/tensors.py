"""Kernels of operators that C++ would decompose by the wrapper's data or device: one-hot encoding,
splits, comparisons of devices, quasi-random numbers.

Input: a call of one of these operators with a fake among its tensors. Output: the call's result,
from operators that the dispatcher then sees one by one. Invariant: values are read only where they
are known.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from torchfake._core import modes
from torchfake._core.devices import decode
from torchfake._operators.argument_values import is_readable, value_read
from torchfake._operators.composites.sequences import as_fakes
from torchfake._tensor import known_values
from torchfake._tensor.attention import scaled_dot_product_attention
from torchfake._tensor.classes import modes_by_kind
from torchfake._tensor.fake_tensor import FakeTensor, fake_copy, is_deferred_fake
from torchfake._tensor.method_arguments import encode_target
from torchfake._torch import dispatcher, subclass
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


COMPARE_DEVICES = (
    aten.stft, aten.istft, aten.corrcoef, aten.cov, aten.gradient, aten.linalg_matrix_rank,
    aten.meshgrid, aten.cartesian_prod, aten.cosine_similarity, aten.inner, aten.take_along_dim,
    aten.linalg_multi_dot, aten.linalg_vander, aten.vander,
)  # fmt: skip


def comparing_devices(redispatch: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """``stft`` and others, with all tensors fake and in a mode: a real window or quantile is on
    the CPU to C++, and a tensor that C++ makes outside a mode is not on the wrapper's device.
    """
    given = [*args, *named.values()]
    is_deferred = any(isinstance(a, FakeTensor) and a._fake_storage.deferred for a in given)
    context = (
        contextlib.nullcontext() if modes.current() is not None else modes_by_kind[is_deferred]()
    )
    with context, _reported_devices():
        made = _as_deferred if is_deferred else as_fakes
        return redispatch(*map(made, args), **{name: made(a) for name, a in named.items()})


@contextlib.contextmanager
def _reported_devices() -> Iterator[None]:
    """Context: an error of C++ names the devices that fakes report, not those of wrappers."""
    try:
        yield
    except RuntimeError as error:
        text = _CARRIER.sub(lambda found: str(decode(torch.device(found[0]))), str(error))
        if text == str(error):
            raise
        raise RuntimeError(text) from None


_CARRIER = re.compile(r"\bmeta:\d+\b")


def attention(redispatch: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """``scaled_dot_product_attention``: C++ compares devices before it chooses a kernel."""
    call = partial(scaled_dot_product_attention, redispatch)
    has_real = any(isinstance(a, torch.Tensor) and not isinstance(a, FakeTensor) for a in args)
    with _reported_devices():
        return comparing_devices(call, *args, **named) if has_real else call(*args, **named)


def quantile(
    redispatch: Callable[..., Any], tensor: torch.Tensor, q: Any, *args: Any, **named: Any
) -> Any:
    """``quantile`` and ``nanquantile``: C++ compares quantiles on the CPU with 0 and 1."""
    if isinstance(q, torch.Tensor) and q.dim() < 2 and q.device.type == "cpu" and is_readable(q):
        with dispatcher.as_eager():
            values = value_read(q)
            is_valid = bool(((values >= 0) & (values <= 1)).all())
        if not is_valid:
            raise RuntimeError("quantile() q values must be in the range [0, 1]")
    return comparing_devices(redispatch, tensor, q, *args, **named)


def _as_deferred(value: Any) -> Any:
    """A recorded copy of a real tensor, in a deferred mode."""
    if isinstance(value, (list, tuple)):
        return [_as_deferred(item) for item in value]
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return value.clone() if is_real and not value.is_meta else value


def set_to_source(
    redispatch: Callable[..., Any],
    tensor: torch.Tensor,
    source: torch.Tensor,
    offset: int,
    *view: Any,
    **named: Any,
) -> Any:
    """``set_`` to a view of another tensor's memory, at an offset from where that tensor begins:
    C++ would use the wrapper's empty storage.
    """
    start = source.storage_offset() + offset
    return tensor.set_(source.untyped_storage(), start, *view, **named)


def moved(redispatch: Callable[..., Any], tensor: torch.Tensor, *target: Any, **named: Any) -> Any:
    """``to``, where C++ compares devices: ``cpu()`` in TorchScript does not name the carrier."""
    args, named = encode_target(target, named)
    return redispatch(tensor, *args, **named)


def one_hot(redispatch: Callable[..., Any], classes: torch.Tensor, num_classes: int = -1) -> Any:
    """``one_hot``: of a subclass, C++ compares with all classes and checks none; of a plain tensor
    it writes ones into zeros, which also have other strides.
    """
    if classes.dtype != torch.int64 or classes.device.type == "meta":
        return redispatch(classes, num_classes)
    if num_classes == -1 and classes.numel():
        num_classes = int(classes.max()) + 1
    if not classes.numel() and num_classes <= 0:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    if classes.device.type == "cpu" and classes.numel() and is_readable(classes):
        with dispatcher.as_eager():
            least, largest = (int(n) for n in value_read(classes).aminmax())
        if least < 0:
            raise RuntimeError("Class values must be non-negative.")
        if largest >= num_classes:
            raise RuntimeError("Class values must be smaller than num_classes.")
    zeros = torch.zeros((*classes.shape, num_classes), dtype=torch.int64, device=classes.device)
    return zeros.scatter_(-1, classes.unsqueeze(-1), 1)


def bincount(
    redispatch: Callable[..., Any],
    counted: torch.Tensor,
    weights: torch.Tensor | None = None,
    minlength: int = 0,
) -> Any:
    """``bincount``: what is counted decides the length; weights need not be known."""
    is_recorded = modes.is_recording() or any(map(is_deferred_fake, (counted, weights)))
    if is_recorded or weights is None or is_readable(weights) or not is_readable(counted):
        return redispatch(counted, weights, minlength)  # the weights are read, or nothing is
    if not counted.numel() or counted.device != weights.device:
        return redispatch(counted, weights, minlength)
    with dispatcher.as_eager():  # refuses what cannot be counted
        values = value_read(counted)
        length = len(torch.bincount(values, torch.ones(weights.shape), minlength))
    kept = weights.dtype in (torch.float32, torch.float64)
    return weights.new_empty([length], dtype=weights.dtype if kept else torch.float64)


def on_values(operator: Any) -> Callable[..., Any]:
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
