"""The operations of generated programs, in tables.

Input: a :class:`Picks`, from which an operation takes its arguments. Output: the result of the
operation. Invariant: an operation reads metadata only, but for those in ``READING``. A new feature
of torchfake is added here: one line in a table lets every property test draw it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.property.arguments import COMPLEX, DTYPES, FLOATING, INTEGER, NothingFits, Picks

_STRIDED = (torch.contiguous_format, torch.preserve_format)
_FORMATS = (*_STRIDED, torch.channels_last)

Operation = Callable[[Picks], Any]


def _array(p: Picks) -> Any:
    dtype = p.of((np.float32, np.int64, np.float64, np.uint8, np.bool_, np.complex64))
    return np.arange(12).astype(dtype).reshape(p.of(((12,), (3, 4), (2, 3, 2))))


FACTORIES: dict[str, Operation] = {
    "empty": lambda p: torch.empty(p.shape(), dtype=p.of((*FLOATING, *COMPLEX))),
    "zeros": lambda p: torch.zeros(p.shape(), dtype=p.dtype()),
    "ones": lambda p: torch.ones(p.shape(), dtype=p.dtype()),
    "full": lambda p: torch.full(p.shape(), p.number()),
    "full_dtype": lambda p: torch.full(p.shape(), p.number(), dtype=p.dtype()),
    "arange": lambda p: torch.arange(p.below(13)),
    "arange_view": lambda p: torch.arange(12, dtype=p.of(FLOATING)).view(3, 4),
    "arange_step": lambda p: torch.arange(0, 4, p.of((1, 0.5, 3)), dtype=p.of((*FLOATING, None))),
    "linspace": lambda p: torch.linspace(p.number(), 7, p.below(9), dtype=p.of(FLOATING)),
    "eye": lambda p: torch.eye(p.below(4), 1 + p.below(4), dtype=p.dtype()),
    "empty_strided": lambda p: torch.empty_strided((2, 3), p.of(((3, 1), (1, 2), (8, 2), (0, 1)))),
    "rand": lambda p: torch.rand(p.shape(), dtype=p.of(FLOATING)),
    "randn": lambda p: torch.randn(p.shape(), dtype=p.of((*FLOATING, *COMPLEX))),
    "randint": lambda p: torch.randint(1 + p.below(99), p.shape(), dtype=p.of(INTEGER)),
    "randperm": lambda p: torch.randperm(p.below(9)),
    "rand_number": lambda p: torch.rand([]),
    "tensor": lambda p: torch.tensor([[p.number(), p.number()], [1, 2]]),
    "tensor_number": lambda p: torch.tensor(p.number(), dtype=p.of((*DTYPES, None))),
    "from_numpy": lambda p: torch.from_numpy(_array(p)).clone(),  # numpy's memory is not resizable
    "as_tensor": lambda p: torch.as_tensor([p.number(), p.number(), 2]),
    "parameter": lambda p: torch.empty(2, 3, dtype=p.of(FLOATING)).requires_grad_(),
    "known_parameter": lambda p: torch.ones(p.shape(), dtype=p.of(FLOATING), requires_grad=True),
    "image": lambda p: torch.zeros(2, 3, 2, 2).to(memory_format=p.of(_FORMATS)),
    "complex": lambda p: torch.arange(6, dtype=p.of(COMPLEX)).view(2, 3) * 1j,
}


LIKES: dict[str, Operation] = {
    "empty_like": lambda p: torch.empty_like(p.floating(), memory_format=p.of(_FORMATS)),
    "zeros_like": lambda p: torch.zeros_like(p.tensor(), dtype=p.of((*DTYPES, None))),
    "ones_like": lambda p: torch.ones_like(p.tensor(), memory_format=p.of(_STRIDED)),
    "full_like": lambda p: torch.full_like(p.tensor(), p.below(2)),
    "rand_like": lambda p: torch.rand_like(p.floating()),
    "randn_like": lambda p: torch.randn_like(p.floating()),
    "randint_like": lambda p: torch.randint_like(p.real(), 2),
    "new_empty": lambda p: p.floating().new_empty(p.shape()),
    "new_zeros": lambda p: p.tensor().new_zeros(p.shape(), dtype=p.of((*DTYPES, None))),
    "new_ones": lambda p: p.tensor().new_ones(p.shape()),
    "new_full": lambda p: p.tensor().new_full(p.shape(), p.below(2)),
    "new_tensor": lambda p: p.tensor().new_tensor([0, 1, 1]),
    "new_empty_strided": lambda p: p.floating().new_empty_strided((2, 3), (1, 2)),
}


def _slice(p: Picks) -> Tensor:
    tensor = p.tensor(lambda t: t.dim() > 0)
    return tensor[p.of((slice(1, None), slice(None, None, 2), slice(0, 2), slice(3, 1)))]


def _as_strided(p: Picks) -> Tensor:
    tensor, size = p.tensor(), p.of(((2, 2), (3,), (), (2, 1, 2)))
    stride = p.of(((1, 2, 3), (2, 1, 1), (0, 1, 0), (3, 1, 2)))[: len(size)]
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
    room = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize - reach
    if room < 0:  # out of bounds has a test of its own
        raise NothingFits
    return tensor.as_strided(size, stride, p.below(room + 1))


def _expand(p: Picks) -> Tensor:
    tensor = p.tensor()
    return tensor.expand(p.of((2, 3)), *(-1 if p.below(3) else 2 for _ in tensor.shape))


def _dim_and(p: Picks, method: str, *arguments: Any) -> Any:
    tensor = p.tensor()
    return getattr(tensor, method)(p.dim(tensor), *arguments)


def _dims(p: Picks, method: str) -> Any:
    tensor = p.tensor()
    return getattr(tensor, method)(p.dim(tensor), p.dim(tensor))


def _permute(p: Picks) -> Tensor:
    tensor = p.tensor()
    dims = list(range(tensor.dim()))
    turn = p.below(max(tensor.dim(), 1))
    return tensor.permute(dims[turn:] + dims[:turn])


VIEWS: dict[str, Operation] = {
    "view_flat": lambda p: p.tensor().view(-1),
    "view": lambda p: p.tensor().view(p.of(((2, -1), (3, -1), (-1, 1, 2), (6,)))),
    "reshape": lambda p: p.tensor().reshape(p.of(((-1,), (2, -1), (-1, 3), (1, -1, 2)))),
    "flatten": lambda p: p.tensor().flatten(),
    "ravel": lambda p: p.tensor().ravel(),
    "unflatten": lambda p: _dim_and(p, "unflatten", (1, -1)),
    "transpose": lambda p: _dims(p, "transpose"),
    "movedim": lambda p: _dims(p, "movedim"),
    "permute": _permute,
    "t": lambda p: p.tensor().t(),
    "mT": lambda p: p.tensor(lambda t: t.dim() >= 2).mT,
    "select": lambda p: _dim_and(p, "select", p.of((0, -1, 1))),
    "item_0": lambda p: p.tensor()[0],
    "slice": _slice,
    "new_axis": lambda p: p.tensor()[..., None],
    "narrow": lambda p: _dim_and(p, "narrow", p.below(2), p.below(3)),
    "unfold": lambda p: _dim_and(p, "unfold", 1 + p.below(2), 1 + p.below(2)),
    "expand": _expand,
    "expand_as": lambda p: p.tensor().expand_as(p.tensor()),
    "unsqueeze": lambda p: _dim_and(p, "unsqueeze"),
    "squeeze": lambda p: p.tensor().squeeze(),
    "squeeze_dim": lambda p: _dim_and(p, "squeeze"),
    "diagonal": lambda p: _diagonal(p.tensor(), p.of((0, 1, -1))),
    "as_strided": _as_strided,
    "chunk": lambda p: _chunked(p, "chunk", 2),
    "split": lambda p: _chunked(p, "split", 2),
    "unbind": lambda p: _dim_and(p, "unbind"),
    "view_as": lambda p: p.tensor().view_as(p.tensor()),
    "real": lambda p: p.tensor().real,
    "imag": lambda p: p.tensor().imag,
    "conj": lambda p: p.tensor().conj(),
    "view_as_real": lambda p: torch.view_as_real(p.tensor()),
    "view_as_complex": lambda p: torch.view_as_complex(p.tensor()),
    "resolve_conj": lambda p: p.tensor().resolve_conj(),
    "resolve_neg": lambda p: p.tensor().resolve_neg(),
    "detach": lambda p: p.tensor().detach(),
    "data": lambda p: p.tensor().data,
    "view_dtype": lambda p: p.tensor().view(p.dtype()),
}


def _diagonal(tensor: Tensor, offset: int) -> Tensor:
    return tensor.diagonal(offset)


def _chunked(p: Picks, method: str, size: int) -> Any:
    tensor = p.tensor()
    return getattr(tensor, method)(size, p.dim(tensor))


def _resize(p: Picks) -> Tensor:
    return p.tensor().resize_(p.shape())


def _set_data(p: Picks) -> None:
    p.tensor().data = p.tensor()


def _set_storage(p: Picks) -> Tensor:
    tensor, source = p.tensor(), p.tensor()
    room = source.untyped_storage().nbytes() // tensor.dtype.itemsize
    size = min(room, p.below(4))
    return tensor.set_(source.untyped_storage(), p.below(room - size + 1), (size,), (1,))


def _set_source(p: Picks) -> Tensor:
    tensor = p.tensor()
    return tensor.set_(p.tensor(lambda t: t.dtype == tensor.dtype))


def _setitem(p: Picks) -> None:
    tensor = p.tensor(lambda t: t.dim() > 0)
    tensor[p.of((0, slice(1, None), ..., slice(None, None, 2)))] = p.below(2)


def _index_put(p: Picks) -> Tensor:
    tensor = p.tensor(lambda t: t.dim() > 0 and t.shape[0] > 0)
    value = torch.ones((), dtype=tensor.dtype, device=tensor.device)
    return tensor.index_put_((p.positions(tensor, 0),), value, accumulate=p.below(2) == 1)


def _masked_fill(p: Picks) -> Tensor:
    tensor = p.tensor()
    return tensor.masked_fill_(p.mask(tensor), p.below(2))


IN_PLACE: dict[str, Operation] = {
    "add_number_": lambda p: p.tensor().add_(p.number()),
    "add_": lambda p: p.tensor().add_(p.tensor()),
    "sub_": lambda p: p.tensor().sub_(p.tensor()),
    "mul_": lambda p: p.tensor().mul_(p.tensor()),
    "div_": lambda p: p.tensor().div_(2),
    "neg_": lambda p: p.tensor().neg_(),
    "abs_": lambda p: p.tensor().abs_(),
    "exp_": lambda p: p.tensor().exp_(),
    "clamp_": lambda p: p.real().clamp_(0, 1),
    "copy_": lambda p: p.tensor().copy_(p.tensor()),
    "fill_": lambda p: p.tensor().fill_(p.number()),
    "fill_tensor_": lambda p: p.tensor().fill_(p.tensor(lambda t: t.dim() == 0)),
    "zero_": lambda p: p.tensor().zero_(),
    "normal_": lambda p: p.floating().normal_(),
    "uniform_": lambda p: p.floating().uniform_(0, p.of((1, 2))),
    "random_": lambda p: p.real().random_(0, 2),
    "bernoulli_": lambda p: p.real().bernoulli_(0.5),
    "t_": lambda p: p.tensor().t_(),
    "transpose_": lambda p: _dims(p, "transpose_"),
    "swapaxes_": lambda p: _dims(p, "swapaxes_"),
    "squeeze_": lambda p: p.tensor().squeeze_(),
    "squeeze_dim_": lambda p: _dim_and(p, "squeeze_"),
    "unsqueeze_": lambda p: _dim_and(p, "unsqueeze_"),
    "resize_": _resize,
    "resize_as_": lambda p: p.tensor().resize_as_(p.tensor()),
    "set_data": _set_data,
    "set_storage_": _set_storage,
    "set_source_": _set_source,
    "set_nothing_": lambda p: p.tensor().set_(),
    "setitem": _setitem,
    "index_put_": _index_put,
    "masked_fill_": _masked_fill,
    "tril_": lambda p: p.tensor().tril_(),
    "add_out": lambda p: torch.add(p.tensor(), p.tensor(), out=p.tensor()),
    "mul_out": lambda p: torch.mul(p.tensor(), 2, out=p.tensor()),
    "cat_out": lambda p: torch.cat((p.tensor(), p.tensor()), out=p.tensor()),
    "sum_out": lambda p: torch.sum(p.tensor(), 0, out=p.tensor().clone()),
    "empty_out": lambda p: torch.empty(p.shape(), out=p.tensor()),
}


CONVERSIONS: dict[str, Operation] = {
    "to_dtype": lambda p: p.tensor().to(p.dtype()),
    "to_other": lambda p: p.tensor().to(p.tensor()),
    "to_copy": lambda p: p.tensor().to("cpu", p.of((*DTYPES, None)), copy=True),
    "to_format": lambda p: p.tensor().to(memory_format=p.of(_FORMATS)),
    "half": lambda p: p.tensor().half(),
    "double": lambda p: p.tensor().double(),
    "bool": lambda p: p.tensor().bool(),
    "cpu": lambda p: p.tensor().cpu(),
    "type": lambda p: p.tensor().type(p.of(("torch.LongTensor", "torch.HalfTensor"))),
    "contiguous": lambda p: p.tensor().contiguous(memory_format=p.of((_FORMATS[0], _FORMATS[2]))),
    "clone": lambda p: p.tensor().clone(memory_format=p.of(_FORMATS)),
}


def _reduce(p: Picks, name: str, fits: Callable[[Tensor], bool] = lambda t: True) -> Tensor:
    tensor = p.tensor(fits)
    return getattr(torch, name)(tensor, p.dim(tensor), keepdim=p.below(2) == 1)


def _filled(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and not tensor.dtype.is_complex


def _index(p: Picks) -> Tensor:
    tensor = p.tensor(lambda t: t.dim() > 0 and t.shape[0] > 0)
    return tensor[p.positions(tensor, 0)]


def _index_select(p: Picks) -> Tensor:
    tensor = p.tensor(lambda t: t.numel() > 0)
    dim = p.dim(tensor)
    return tensor.index_select(dim, p.positions(tensor, dim))


COMPUTED: dict[str, Operation] = {
    "add": lambda p: p.tensor() + p.tensor(),
    "add_number": lambda p: p.tensor() + p.number(),
    "sub": lambda p: torch.sub(p.tensor(), p.tensor()),
    "mul": lambda p: p.tensor() * p.tensor(),
    "mul_number": lambda p: p.number() * p.tensor(),
    "div": lambda p: p.tensor() / p.tensor(),
    "div_number": lambda p: p.tensor() / 2,
    "maximum": lambda p: torch.maximum(p.real(), p.real()),
    "eq": lambda p: p.tensor() == p.tensor(),
    "lt": lambda p: p.real() < p.number(),
    "logical_and": lambda p: torch.logical_and(p.tensor(), p.tensor()),
    "where": lambda p: torch.where(p.tensor(lambda t: t.dtype == torch.bool), p.tensor(), 0),
    "neg": lambda p: -p.tensor(),
    "abs": lambda p: p.tensor().abs(),
    "exp": lambda p: p.tensor().exp(),
    "sqrt": lambda p: p.real().sqrt(),
    "square": lambda p: p.tensor() ** 2,
    "relu": lambda p: torch.relu(p.floating()),
    "softmax": lambda p: torch.softmax(p.floating(), -1),
    "sum": lambda p: p.tensor().sum(),
    "sum_dim": lambda p: _reduce(p, "sum"),
    "mean": lambda p: _reduce(p, "mean", lambda t: t.dtype.is_floating_point),
    "amax": lambda p: _reduce(p, "amax", _filled),
    "argmax": lambda p: _reduce(p, "argmax", _filled),
    "all": lambda p: _reduce(p, "all"),
    "max": lambda p: _reduce(p, "max", _filled),
    "prod": lambda p: _reduce(p, "prod"),
    "cumsum": lambda p: _dim_and(p, "cumsum"),
    "cat": lambda p: torch.cat((p.tensor(), p.tensor())),
    "stack": lambda p: torch.stack((p.tensor(), p.tensor())),
    "matmul": lambda p: torch.matmul(p.floating(), p.floating()),
    "repeat": lambda p: p.tensor().repeat(2, *(1 for _ in p.tensor().shape)),
    "flip": lambda p: _dim_and(p, "flip"),
    "roll": lambda p: p.tensor().roll(1),
    "tril": lambda p: p.tensor().tril(),
    "index": _index,
    "index_select": _index_select,
    "masked_fill": lambda p: p.tensor().masked_fill(p.tensor(lambda t: t.dtype == torch.bool), 1),
    "polar": lambda p: torch.polar(*[p.tensor(lambda t: t.dtype == torch.float32)] * 2),
}


READING: dict[str, Operation] = {
    "number": lambda p: p.tensor(lambda t: t.numel() == 1).item(),
    "truth": lambda p: bool(p.tensor(lambda t: t.numel() == 1)),
    "list": lambda p: p.tensor().tolist(),
    "equal": lambda p: torch.equal(p.tensor(), p.tensor()),
    "nonzero": lambda p: p.tensor().nonzero(),
    "masked_select": lambda p: p.tensor().masked_select(p.tensor(lambda t: t.dtype == torch.bool)),
    "mask_index": lambda p: p.tensor()[p.tensor(lambda t: t.dtype == torch.bool)],
    "unique": lambda p: p.real().unique(),
    "repeat_interleave": lambda p: p.tensor().repeat_interleave(torch.tensor([1, 2]), 0),
    "range": lambda p: list(range(p.tensor(lambda t: t.numel() == 1 and t.dtype in INTEGER))),
}
"""Operations that need values: on fakes they may raise UnknownValueError."""


def _backward(p: Picks) -> None:
    root = p.tensor(lambda t: t.requires_grad)
    (root.abs() if root.dtype.is_complex else root).sum().backward(retain_graph=p.below(2) == 1)


def _grad(p: Picks) -> Any:
    """Reading ``.grad`` of what is no leaf warns, and gives None."""
    return p.tensor(lambda t: t.is_leaf).grad


AUTOGRAD: dict[str, Operation] = {
    "requires_grad_": lambda p: p.tensor().requires_grad_(p.below(4) > 0),
    "detach_": lambda p: p.tensor().detach_(),
    "retain_grad": lambda p: p.tensor().retain_grad(),
    "backward": _backward,
    "grad": _grad,
}


OPERATIONS: dict[str, Operation] = {
    **FACTORIES, **LIKES, **VIEWS, **IN_PLACE, **CONVERSIONS, **COMPUTED, **READING, **AUTOGRAD
}  # fmt: skip
