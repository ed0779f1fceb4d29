"""Refuses arguments that eager refuses and torch's meta kernels accept.

Input: a :class:`Call` before it runs, or indices. Output: nothing, or the error that eager would
raise. Invariant: arguments that eager accepts are accepted here.

``_eager_checks/dtypes`` finds the errors of eager's kernels about dtypes and parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchfake._core import modes
from torchfake._operators.operator_call import (
    Call,
    device_of,
    different_devices,
    mutated_tensors,
    named_arguments,
)
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends, dispatcher
from torchfake.errors import RealTensorWriteError, UnsupportedOpError

aten = torch.ops.aten

_NO_PROMOTION = frozenset(
    {"aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::vdot", "aten::addmm", "aten::addmv",
     "aten::addbmm", "aten::baddbmm", "aten::convolution"}
)  # fmt: skip


def check_arguments(call: Call) -> None:
    """Raise the error that eager would raise for this call and meta kernels would not."""
    if call.traits.mutated_names:
        _check_mutated(call)
    for check in _CHECKS.get(call.traits.packet, ()):
        check(call)


def refuse_nested(func: Any, args: Any, kwargs: Any) -> Any:
    """Refuse a nested tensor, which ``nn.TransformerEncoder`` makes if a mask is left-aligned. The
    encoder is told that masks of plain fakes are not; masks of deferred tensors are read.
    """
    raise UnsupportedOpError(
        f"{func} makes or takes a nested tensor, which cannot be recorded or fake. "
        "nn.TransformerEncoder (and nn.Transformer) asks for it in eval() with a "
        "src_key_padding_mask. Make the encoder with enable_nested_tensor=False, set "
        "encoder.use_nested_tensor = False, or call train(); or do this after materialize_module"
    )


_FILLS = {
    "aten::full": 1, "aten::full_like": 1, "aten::new_full": 2, "aten::fill_": 1,
    "aten::masked_fill": 2, "aten::masked_fill_": 2,
}  # fmt: skip
"""Operators that fill a tensor with a number, and the position of this argument."""


def _check_number(call: Call) -> None:
    """Refuse a number outside of the dtype: 1e40 in float32, a complex number in a real dtype."""
    position = _FILLS[call.traits.packet]
    number = call.args[position] if len(call.args) > position else None
    dtype = call.kwargs.get("dtype") or (call.tensors[0].dtype if call.tensors else None)
    if isinstance(number, (bool, int, float, complex)) and dtype is not None:
        with dispatcher.no_interception():
            torch.full((), number, dtype=dtype, device="cpu")  # raises what eager raises


_WITH_DRIVER = {"aten::_linalg_svd": 1, "aten::linalg_lstsq": 2}
"""Routines whose driver can be chosen, and how many matrices each takes."""


def _check_driver(call: Call) -> None:
    """Refuse a driver that LAPACK does not have: its drivers differ from CUDA's."""
    if call.kwargs.get("driver") is not None and call.device.type == "cpu":
        one = torch.ones(1, 1, dtype=call.tensors[0].dtype, device="cpu")
        with dispatcher.as_eager():  # raises what eager raises
            matrices = [one] * _WITH_DRIVER[call.traits.packet]  # without ``out=``
            call.func.overloadpacket(*matrices, driver=call.kwargs["driver"])


_TRANSFORMS = frozenset({"aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r"})


def _check_batch(call: Call) -> None:
    """Refuse to transform no signals, if the library of Fourier transforms does."""
    tensor = call.args[0]
    if call.device.type == "cpu" and not tensor.numel():
        with dispatcher.as_eager():  # raises what eager raises, without ``out=``
            nothing = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            call.func.overloadpacket(nothing, *call.args[1:])


def _check_weights(call: Call) -> None:
    """Refuse weights that are not one for each class: the meta kernel broadcasts a single one."""
    given = named_arguments(call.func, call.args, call.kwargs)
    weight = given["weight"]
    if weight is not None and given["self"].dim() == 4 and weight.numel() != given["self"].shape[1]:
        raise RuntimeError("weight tensor should be defined either for all or no classes")


def _alert_of_put(call: Call) -> None:
    one, index = torch.zeros(1, device="cpu"), torch.zeros(1, dtype=torch.int64, device="cpu")
    accumulate = call.args[3] if len(call.args) > 3 else call.kwargs.get("accumulate", False)
    one.put_(index, one.clone(), accumulate)


def _alert_of_max_unpool(call: Call) -> None:
    one, index = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.int64)
    aten.max_unpool2d.default(one, index, [1, 1])


_NOT_DETERMINISTIC = {
    "aten::put_": _alert_of_put,
    "aten::put": _alert_of_put,
    "aten::max_unpool2d": _alert_of_max_unpool,
}
"""Operators whose CPU kernels refuse ``torch.use_deterministic_algorithms`` and whose meta kernels
do not, each with a call that makes torch refuse or warn, as the user has set.
"""


def _check_determinism(call: Call) -> None:
    if backends.is_deterministic():
        with dispatcher.as_eager():
            _NOT_DETERMINISTIC[call.traits.packet](call)


_AT_DIM = frozenset({"aten::_softmax", "aten::_safe_softmax", "aten::sort"})
"""Operators along one dimension whose meta kernels accept any dimension."""


def _check_dim(call: Call) -> None:
    dim = named_arguments(call.func, call.args, call.kwargs).get("dim", -1)
    num_dims = call.args[0].dim()
    if not -max(num_dims, 1) <= dim < max(num_dims, 1):
        with dispatcher.no_interception():
            torch.empty([0] * max(num_dims, 1), device="cpu").size(dim)  # raises what eager raises


_INTEGERS = frozenset({torch.int32, torch.int64})
_DTYPES_OF_INDEX = {
    "aten::masked_fill_": (1, frozenset({torch.bool})),
    "aten::index_select": (2, _INTEGERS),
    "aten::index_add": (2, _INTEGERS),
    "aten::index_add_": (2, _INTEGERS),
    "aten::index_copy": (2, _INTEGERS),
    "aten::index_copy_": (2, _INTEGERS),
    "aten::index_fill": (2, _INTEGERS),
    "aten::index_fill_": (2, _INTEGERS),
}
"""The position of the mask or indices of an operator, and the dtypes that are always accepted."""


def _check_dtype_of_index(call: Call) -> None:
    position, dtypes = _DTYPES_OF_INDEX[call.traits.packet]
    index = call.args[position] if len(call.args) > position else None
    if isinstance(index, torch.Tensor) and index.dtype not in dtypes:
        with dispatcher.no_interception():  # raises what eager raises
            call.func(*map(_one_element, call.args), **call.kwargs)


def _one_element(arg: Any) -> Any:
    """A real tensor of one element for a tensor, of the same dtype and number of dimensions."""
    is_tensor = isinstance(arg, torch.Tensor)
    return torch.zeros([1] * arg.dim(), dtype=arg.dtype, device="cpu") if is_tensor else arg


def _check_reduced(call: Call) -> None:
    """aten/src/ATen/native/TensorAdvancedIndexing.cpp: torch's meta kernel checks nothing."""
    target, dim, index, source = call.args[:4]
    num_dims = max(target.dim(), 1)
    dim += num_dims if dim < 0 else 0
    is_plain = index.dtype in _INTEGERS and index.dim() <= 1 and target.dtype == source.dtype
    if not is_plain or not 0 <= dim < min(num_dims, max(source.dim(), 1)):
        with dispatcher.no_interception():  # raises what eager raises
            call.func(*map(_one_element, call.args))
    rows = source.size(dim) if source.dim() or index.numel() != 1 else 1  # as eager raises
    if index.numel() != rows:
        raise RuntimeError(
            f"index_reduce_(): Number of indices ({index.numel()}) should be equal to "
            f"source.size(dim): ({rows}), for dim: {dim}"
        )
    sizes, others = list(target.shape), list(source.shape)
    if [*sizes[:dim], rows, *sizes[dim + 1 :]] != (others or [rows]) or len(sizes) != len(others):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {sizes} source.shape = {others}"
        )


_WRITES_AT_INDICES = frozenset(
    {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"}
)


_AT_INDICES = _WRITES_AT_INDICES | {"aten::index", "aten::_unsafe_index"}
_MASKS = frozenset({torch.bool, torch.uint8})
_INDICES = _INTEGERS | _MASKS


def _check_indices(call: Call) -> None:
    indices = [index for index in call.args[1] if index is not None]
    if any(index.dtype not in _INDICES for index in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    num_dims = call.args[0].dim()
    if len(call.args[1]) > num_dims:
        given = f"(got {len(call.args[1])})"
        raise IndexError(f"too many indices for tensor of dimension {num_dims} {given}")
    shapes = [index.shape for index in indices if index.dtype in _INTEGERS]
    try:
        torch.broadcast_shapes(*shapes)
    except RecursionError:
        raise
    except RuntimeError:
        listed = ", ".join(str(list(shape)) for shape in shapes)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {listed}"
        ) from None


def check_shape_written(target: Any, indices: Any, values: Any) -> None:
    """Refuse values whose shape does not broadcast to the indexed elements."""
    if any(index is not None and index.dtype in _MASKS for index in indices):
        return  # the number of indexed elements depends on the mask's values
    with dispatcher.no_interception():
        on_meta = [None if i is None else _on_meta(i, torch.int64) for i in indices]
        found = aten.index.Tensor(_on_meta(target, torch.float32), on_meta).shape
    sizes = zip(reversed(values.shape), reversed(found), strict=False)
    if len(values.shape) > len(found) or any(own not in (1, size) for own, size in sizes):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {list(found)}"
        )


def _on_meta(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=dtype, device="meta")


def _check_values_written(call: Call) -> None:
    """Refuse values on another device than the target's, but for one of no dims, which is copied.

    A plain meta tensor fits too: outside a mode, C++ makes one from a number (``x[mask] = 0``), and
    one of zeros for the gradient of ``x[mask] = y``.
    """
    target, values = call.args[0], call.args[2]
    own, expected = device_of(values), device_of(target)
    is_made_in_cpp = own is None and (values.dim() == 0 or modes.current() is None)
    is_anywhere = is_made_in_cpp or (values.dim() == 0 and own is not None and own.type != "meta")
    if own != expected and not is_anywhere:
        raise different_devices(call.traits, expected, own)
    check_shape_written(target, call.args[1], values)


def _check_mutated(call: Call) -> None:
    """Refuse to write a real tensor, or a tensor on another device than the result's."""
    for tensor in mutated_tensors(call):
        if not isinstance(tensor, FakeTensor) and not tensor.is_meta:
            raise RealTensorWriteError(
                f"{call.traits.name} would write fake values into a real tensor of shape "
                f"{list(tensor.shape)} and dtype {tensor.dtype}. Write out of place (the result is "
                "a fake), or into its fake copy: torchfake.fake_like(tensor). If the values are "
                "those of a deferred module, call materialize_module first"
            )
        own = device_of(tensor)
        if not call.traits.mixes_devices and own is not None and own != call.device:
            raise different_devices(call.traits, call.device, own)


def _check_dtypes_equal(call: Call) -> None:
    """Refuse mixed dtypes: products do not promote, so a half layer refuses a float input."""
    if call.traits.packet == "aten::convolution" and 0 in call.args[0].shape[:2]:
        return  # no product: see ``meta_kernels/convolutions``
    factors = call.tensors
    if call.func._overloadname.startswith("dtype"):  # ``out_dtype=``: the factors are alike
        factors = [t for t in factors if t is not call.kwargs.get("out")][-2:]
    dtypes = list(dict.fromkeys(t.dtype for t in factors))
    if len(dtypes) > 1:
        raise RuntimeError(
            f"{call.traits.name}: mat1 and mat2 must have the same dtype, but got {dtypes[0]} and "
            f"{dtypes[1]}"
        )


_ADDS = frozenset({"aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::rsub"})


def _check_bools(call: Call) -> None:
    """Refuse to subtract bools (tensors or numbers), and a bool ``alpha`` unless the result is
    bool: meta kernels accept both, or raise another message.
    """
    has_bool = any(t.dtype == torch.bool for t in call.tensors)
    if has_bool or any(isinstance(a, bool) for a in (*call.args, *call.kwargs.values())):
        kwargs = {name: _zero_dim(arg) for name, arg in call.kwargs.items()}
        with dispatcher.no_interception():  # raises what eager raises
            call.func(*(_zero_dim(arg) for arg in call.args), **kwargs)


def _zero_dim(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return torch.zeros((), dtype=arg.dtype, device="cpu")
    return arg


def check_mask_fits(mask: Any, source: Any, dim: int) -> None:
    """Refuse a mask whose sizes differ from the dims that it indexes, from `dim` on: once the mask
    is replaced by its positions, no kernel checks them.
    """
    for i, (size, expected) in enumerate(zip(mask.shape, source.shape[dim:], strict=False)):
        if size != expected:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {i} does not match the shape "
                f"of the indexed tensor {list(source.shape)} at index {dim + i}"
            )


def check_index_devices(source: Any, indices: Any) -> None:
    for i in indices:
        if i is not None and i.device.type != "cpu" and i.device != source.device:
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({source.device}). Of a list C++ makes an index on meta inside of torch.func, "
                "after a mode or since torch 2.15, and in torch.Tensor.__getitem__(x, list): "
                "write x[torch.tensor(list)]"
            )


_CHECKS: dict[str, list[Callable[[Call], None]]] = {}
"""The checks of an operator, in order."""
for _packets, _check in (
    (_NO_PROMOTION, _check_dtypes_equal),
    (_AT_DIM, _check_dim),
    (_DTYPES_OF_INDEX, _check_dtype_of_index),
    (_AT_INDICES, _check_indices),
    (_WRITES_AT_INDICES, _check_values_written),
    (_ADDS, _check_bools),
    (_NOT_DETERMINISTIC, _check_determinism),
    (_FILLS, _check_number),
    (_WITH_DRIVER, _check_driver),
    (_TRANSFORMS, _check_batch),
    (("aten::nll_loss2d_forward",), _check_weights),
    (("aten::index_reduce", "aten::index_reduce_"), _check_reduced),
):
    for _packet in _packets:
        _CHECKS.setdefault(_packet, []).append(_check)
