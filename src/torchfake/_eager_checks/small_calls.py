"""A call as it is tried: the same on small real tensors, and what a kernel says of it.

Input: a call, and how it is to be cut. Output: small tensors and sizes in place of its own; the
error that a kernel raises on them. Invariant: kernels run on sizes that the meta kernel accepts,
since they need not look whether sizes agree, and would read and write past the end.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch

from torchfake._operators.constant_propagation import argument_value, is_known
from torchfake._operators.operator_call import Call
from torchfake._torch import dispatcher

MAX_TRIAL_ELEMENTS = 1 << 14


class Cut(NamedTuple):
    """The size that a tensor of some size has in a trial."""

    others: int | None = None  # dims but the last are at most so long; None: as they are
    last: int | None = None
    lists: bool = False  # so are lists of integers, which are sizes
    integer: int = 1  # the value of integers: what may be an index is 0, but a pivot 1
    replaced: tuple[torch.dtype, torch.dtype] | None = None  # a dtype, and the one in its place

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.replaced[1] if self.replaced and self.replaced[0] is dtype else dtype

    def of(self, size: Any) -> tuple[int, ...]:
        sizes = [n if self.others is None else min(n, self.others) for n in size]
        if sizes:
            sizes[-1] = size[-1] if self.last is None else min(size[-1], self.last)
        return tuple(sizes)


def error_of(call: Call, cut: Cut, device: str = "cpu") -> Exception | None:
    """What the kernel raises on small tensors."""
    args = [small(arg, cut, device) for arg in call.args]
    try:
        run_small(call.func, args, small_values(call.kwargs, cut, device))
    except Exception as error:
        return error.with_traceback(None)
    return None


def run_small(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    with dispatcher.as_eager(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what eager warns of, the replay does
        func(*args, **kwargs)


def cuts_for(call: Call) -> list[Cut]:
    """How to make the tensors small: not at all if they are; else only if nothing among the other
    arguments can be the size of one, and the meta kernel accepts it. Kernels need not look whether
    sizes agree, and would read and write past the end.
    """
    has_floats = any(t.dtype.is_floating_point or t.dtype.is_complex for t in call.tensors)
    are_pivots = call.traits.packet in TAKES_PIVOTS
    whole = Cut(integer=0 if has_floats and not are_pivots else 1)
    if call.tensors and sum(t.numel() for t in call.tensors) <= MAX_TRIAL_ELEMENTS:
        return [whole]
    checks_sizes = call.traits.packet in _CHECK_SIZES or not call.tensors
    if not checks_sizes and any(map(_may_be_size, *_arguments_and_types(call))):
        return []
    cut = whole._replace(others=3, last=3, lists=checks_sizes)
    return [cut] if error_of(call, cut, "meta") is None else []


_CHECK_SIZES = frozenset({"aten::native_layer_norm", "aten::new_full"})
"""Operators whose kernels look at the sizes that they are given, or for which any will do."""

TAKES_PIVOTS = frozenset({
    "aten::linalg_ldl_solve", "aten::linalg_lu_solve", "aten::lu_unpack"
})  # fmt: skip
"""Their integers count from one. LAPACK does not look: before torch 2.13, a 0 ends the process."""


def _arguments_and_types(call: Call) -> tuple[list[Any], list[str]]:
    """The arguments of a call, and the types that the schema gives them."""
    types = {a.name: str(a.type) for a in call.func._schema.arguments}
    values = [*call.args, *call.kwargs.values()]
    return values, [*list(types.values())[: len(call.args)], *(types[n] for n in call.kwargs)]


def _may_be_size(value: Any, kind: str) -> bool:
    if isinstance(value, (list, tuple)):
        return "int" in kind and any(_may_be_size(item, kind) for item in value)
    return "int" in kind and isinstance(value, int) and abs(value) > 3


def small_values(
    kwargs: dict[str, Any], cut: Cut, device: str = "cpu", *, keeps_known: bool = False
) -> Any:
    names = [name for name in kwargs if name not in ("pin_memory", "generator")]
    return {name: small(kwargs[name], cut, device, keeps_known=keeps_known) for name in names}


def small(arg: Any, cut: Cut, device: str = "cpu", *, keeps_known: bool = False) -> Any:
    """An argument of a trial."""
    if isinstance(arg, torch.Tensor):
        if keeps_known and is_known(arg):
            return argument_value(arg)
        is_integer = arg.dtype in INTEGERS
        size, dtype, value = cut.of(arg.shape), cut.dtype(arg.dtype), cut.integer
        return torch.full(size, value if is_integer else 1, dtype=dtype, device=device)
    if isinstance(arg, (list, tuple)):
        items = [small(item, cut, device, keeps_known=keeps_known) for item in arg]
        are_sizes = cut.lists and items and all(type(item) is int for item in items)
        return list(cut.of(items)) if are_sizes else items
    if isinstance(arg, torch.device):
        return torch.device(device)
    return cut.dtype(arg) if isinstance(arg, torch.dtype) else arg


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


NO_DTYPE = "not implemented for '"
"""How the kernels' dispatch over dtypes says that there is none for a dtype."""
