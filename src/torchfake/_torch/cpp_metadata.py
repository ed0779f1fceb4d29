"""The C++ functions of torch that compute the metadata of results, for every device.

Input: an operator and plain meta tensors. Output: its results. Invariant: nothing of torch's Python
is run, unless C++ calls another operator.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from torchfake._torch import dispatcher
from torchfake._torch.dispatch_keys import has_kernel


@cache
def is_pointwise(func: Any) -> bool:
    """Whether an operator is tagged as pointwise, or where it writes in place the overload that
    does not: some are tagged only there.
    """
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    plain = getattr(getattr(torch.ops.aten, name, None), func._overloadname, func)
    return torch.Tag.pointwise in {*func.tags, *plain.tags}


@cache
def is_structured(func: Any) -> bool:
    """Whether an operator has a function in C++ for the metadata of its results, with which the
    kernels of all devices begin. Torch shadows it for meta tensors by one in Python, whose strides
    are others: in dims of length one, of empty tensors, of broadcasts. In 2.12 to 2.15.
    """
    is_functional = func.namespace == "aten" and not func._schema.is_mutable
    return is_functional and has_kernel(func.name(), "CompositeExplicitAutogradNonFunctional")


@cache
def begins_kernel_of_cpu(func: Any) -> bool:
    """Whether the kernel of the CPU, in an overload with ``out=``, begins with that function: not
    for the compositions that are registered as structured operators are.
    """
    packet = func.overloadpacket
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return is_structured(func) and any(
        has_kernel(other.name(), "CPU")
        for other in overloads
        if any(argument.is_out for argument in other._schema.arguments)
    )


@cache
def has_meta_kernel(func: Any) -> bool:
    """Whether torch can run an operator on meta tensors: by a kernel, or as C++ composes it."""
    if func is torch.ops.aten.mode.values:  # it is composed, and asks for the device
        return False
    keys = ("Meta", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    return any(has_kernel(func.name(), key) for key in keys)


@cache
def has_kernel_of_cpu(func: Any) -> bool:
    """Whether an operator has a kernel of the CPU of its own, which is no composition."""
    return has_kernel(func.name(), "CPU")


@cache
def has_structured_overload(func: Any) -> bool:
    """Whether an overload of the operator is structured: all of them check their sizes first."""
    packet = func.overloadpacket
    return any(is_structured(getattr(packet, name)) for name in packet.overloads())


def begin_structured(func: Any, args: Any, kwargs: Any) -> Any:
    """Make the results of a structured operator, and have its overload with ``out=`` fill them."""
    return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional, *args, **kwargs)


@cache
def is_composed_below_autograd(func: Any) -> bool:
    """Whether C++ has an operator done by others on every device, after autograd has seen it
    (CompositeExplicitAutograd). For meta tensors, torch shadows this by a function in Python.
    """
    name = func.name()
    is_in_place = func._schema.is_mutable and not any(a.is_out for a in func._schema.arguments)
    if func.namespace != "aten" or is_in_place or has_kernel(name, "CPU"):
        return False
    return has_kernel(name, "CompositeExplicitAutograd") and not has_kernel(
        name, "CompositeImplicitAutograd"
    )


def compose_below_autograd(func: Any, args: Any, kwargs: Any) -> Any:
    """Do such an operator as C++ does it on every device."""
    return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def fft_into(out: Any, tensor: Any, sizes: list[int], dims: list[int], *, forward: bool) -> Any:
    """Give `out` the strides of a transform over `dims`: those dims are the fastest, the others
    keep their order in memory. As ``_exec_fft`` of torch's Python, but that dims of one stride are
    in the order in which ``std::partition`` leaves them. A transform of nothing is contiguous where
    it is not refused, as it is before 2.15. In 2.12 to 2.15.
    """
    if 0 in sizes:
        return out.resize_(sizes)
    others = _partitioned(tensor.dim(), dims)
    others.sort(key=lambda dim: tensor.stride(dim), reverse=True)
    strides, step = [0] * tensor.dim(), 1
    for dim in reversed(dims):
        strides[dim] = step
        step *= sizes[dim]
    for dim in reversed(others):
        strides[dim] = step
        step *= sizes[dim]
    return out.resize_(sizes).as_strided_(sizes, strides)


def _partitioned(num_dims: int, dims: list[int]) -> list[int]:
    """The dims that are not among `dims`, as ``std::partition`` brings them to the front."""
    order, first, last = list(range(num_dims)), 0, num_dims
    while True:
        while first != last and order[first] not in dims:
            first += 1
        last -= first != last
        while first != last and order[last] in dims:
            last -= 1
        if first == last:
            return order[:first]
        order[first], order[last] = order[last], order[first]
        first += 1


@cache
def group_norm_packs_its_input() -> bool:
    """Whether ``native_group_norm`` copies an input that is in no memory format, as since 2.15, and
    its gradient lies as that copy; or refuses it, and ``group_norm`` copies it before.
    """
    with dispatcher.as_eager():
        columns = torch.zeros(2, 2, device="cpu").t()
        try:
            torch.ops.aten.native_group_norm.default(columns, None, None, 2, 2, 1, 1, 1e-5)
        except RuntimeError:
            return False
        return True


def convolution_takes_mkldnn(input: torch.Tensor, weight: torch.Tensor, *sizes: Any) -> bool:
    """Whether the CPU computes a convolution of these sizes with MKL-DNN, which depends on the
    number of threads, too. Asked of tensors with one element of memory.
    """
    with dispatcher.as_eager():
        like = (
            torch.empty((), dtype=t.dtype, device="cpu").expand(t.shape) for t in (input, weight)
        )
        found: Any = torch._C._select_conv_backend(*like, None, *sizes)
    return int(found) in _MKLDNN


_backends: Any = torch._C._ConvBackend  # type: ignore[attr-defined]
_MKLDNN = (int(_backends.Mkldnn), int(_backends.Mkldnn) + 1)
"""The numbers of MKL-DNN's convolution, and of its transposed one, which has no name in Python."""
