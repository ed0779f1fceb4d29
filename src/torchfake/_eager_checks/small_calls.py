"""Trials of a call: the call with small real tensors, and the error of its kernel.

Input: a call, and the :class:`Cut` to make. Output: small tensors and integers in place of the
call's; the error of a kernel. Invariant: no trial ends the process.

Kernels trust the composite that calls them to have compared sizes, and read and write past the end
if it has not; some divide by a length. So sizes of stand-ins agree, whether those of the call do or
not: each dim of each tensor has one and the same length, which is not 0. An integer may be a
length, too, or make one. Then the call's own sizes are taken, which are its composite's, and only
lengths above any that such an integer may stand for are cut. The meta kernel has to accept all of
these; behind each stand-in there is memory for what a kernel takes to be a product of lengths.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from torchfake._operators.constant_propagation import argument_value, is_known
from torchfake._operators.meta_kernels.outputs import functional_of
from torchfake._operators.meta_kernels.parts import kernel_for
from torchfake._operators.operator_call import Call, named_arguments, tensors_in
from torchfake._torch import dispatcher

MAX_TRIAL_ELEMENTS = 1 << 14


class Cut(NamedTuple):
    """How the arguments of a call are made small for a trial."""

    others: int | None = None  # the maximum of sizes but the last; None: unchanged
    last: int | None = None  # the maximum of the last size
    length: int | None = None  # of every dim, and the maximum of integers without tensors
    lists: bool = False  # whether lists of integers are cut as sizes are
    integer: int = 1  # the value of integers: 0 where indices are expected, 1 for pivots
    replaced: tuple[torch.dtype, torch.dtype] | None = None  # a dtype, and its substitute
    only: str | None = None  # the argument of which the dtype is replaced; None: of all

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.replaced[1] if self.replaced and self.replaced[0] is dtype else dtype

    def of(self, size: Any) -> tuple[int, ...]:
        if self.length is not None:
            return (self.length,) * len(size)
        sizes = [n if self.others is None else min(n, self.others) for n in size]
        if sizes:
            sizes[-1] = size[-1] if self.last is None else min(size[-1], self.last)
        return tuple(sizes)

    def int(self, number: int) -> int:
        return number if self.length is None else max(-self.length, min(number, self.length))


def error_of(call: Call, cut: Cut) -> Exception | None:
    """The error that the kernel raises on small tensors; None if it raises none."""
    args, kwargs = _stand_ins(call, cut, "cpu")
    return error_raised(lambda: run_small(call.func, args, kwargs))


def error_raised(trial: Callable[[], Any]) -> Exception | None:
    """The error that a trial raises, without its frames; None if it raises none. A RecursionError
    is one of the program, and is raised.
    """
    try:
        trial()
    except RecursionError:
        raise
    except Exception as error:
        return error.with_traceback(None)
    return None


def refuses_outputs(call: Call, cut: Cut) -> bool:
    """Whether the kernel accepts the call without its ``out=``."""
    functional = functional_of(call.func)
    if functional is None:
        return False
    args, kwargs = _stand_ins(call, cut, "cpu")
    outputs = _names_of_outputs(call)
    rest = {n: arg for n, arg in kwargs.items() if n not in outputs}
    return error_raised(lambda: run_small(functional, args, rest)) is None


def run_small(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    with dispatcher.as_eager(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the replay gives eager's warnings
        return func(*args, **kwargs)


def cuts_for(call: Call) -> list[Cut]:
    """The ways to make the tensors small: another one is for a call that the kernel refuses after
    the one before, which shows that it compares sizes. There is none if no trial is safe.
    """
    outputs = _names_of_outputs(call)
    read = tensors_in(call.args, {n: a for n, a in call.kwargs.items() if n not in outputs})
    has_floats = any(t.dtype.is_floating_point or t.dtype.is_complex for t in read)
    are_pivots = call.traits.packet in TAKES_PIVOTS
    whole = Cut(integer=0 if has_floats and not are_pivots else 1)
    if any(t.numel() == 0 for t in read):  # kernels accept any dtype then, or divide by 0
        return [whole] if _is_elementwise(call) and _fits(call, whole) else []
    longest = max(_possible_lengths(call), default=0)
    cuts = []
    if not call.tensors or not longest:
        cuts.append(whole._replace(length=_length_for(call)))
    if call.tensors and sum(t.numel() for t in call.tensors) <= MAX_TRIAL_ELEMENTS:
        cuts.append(whole)
    checks_sizes = call.traits.packet in _CHECK_SIZES
    if call.tensors and longest and (longest <= _MAX_LENGTH or checks_sizes):
        cuts.append(whole._replace(others=_MAX_LENGTH, last=_MAX_LENGTH, lists=checks_sizes))
    return [cut for cut in cuts if _fits(call, cut)]


def _names_of_outputs(call: Call) -> set[str]:
    return {argument.name for argument in call.func._schema.arguments if argument.is_out}


def _is_elementwise(call: Call) -> bool:
    """Whether the kernel looks at each element alone, or at those of one tensor that it fills."""
    fills_one = len(call.tensors) == 1 and bool(call.traits.mutated_positions)
    return fills_one or torch.Tag.pointwise in call.func.tags


_MAX_LENGTH = 3

_CHECK_SIZES = frozenset({"aten::native_layer_norm", "aten::new_full"})
"""Operators whose kernels check the sizes that they are given, or accept any."""


def _possible_lengths(call: Call) -> list[int]:
    """The integers among the arguments that may be lengths, or make some."""
    numbers: list[Any] = []
    for name, value in named_arguments(call.func, call.args, call.kwargs).items():
        if name in _takes_integers(call.func) and not name.startswith(("dim", "reduction")):
            numbers.extend(value if isinstance(value, (list, tuple)) else [value])
    return [number for number in numbers if type(number) is int and number > 0]


@lru_cache(maxsize=4096)
def _takes_integers(func: Any) -> frozenset[str]:
    """The names of the arguments that take integers, or lists of some."""
    return frozenset(a.name for a in func._schema.arguments if "int" in str(a.type))


def _length_for(call: Call) -> int:
    """The length of all dims in a trial: 1 if nothing has more elements, since some kernels then
    accept any dtype.
    """
    if call.tensors and all(t.numel() == 1 for t in call.tensors):
        return 1
    num_dims = max((t.dim() for t in call.tensors), default=0)
    return _MAX_LENGTH if _MAX_LENGTH**num_dims <= MAX_TRIAL_ELEMENTS else 2


def _fits(call: Call, cut: Cut) -> bool:
    """Whether the meta kernel accepts the small sizes, for results that are small, too."""
    num_elements = num_elements_on_meta(call, cut)
    return num_elements is not None and num_elements <= _MAX_RESULT_ELEMENTS


def num_elements_on_meta(call: Call, cut: Cut) -> int | None:
    """The number of elements of the results; None if the meta kernel refuses the sizes, which it
    does if it refuses them of usual dtypes as well.
    """
    kernel = kernel_for(call.func, "cpu")
    for pair in (None, *((dtype, torch.float32) for dtype in {t.dtype for t in call.tensors})):
        args, kwargs = _stand_ins(call, cut._replace(replaced=pair), "meta")
        try:
            results = run_small(kernel, args, kwargs)
        except RecursionError:  # of the program
            raise
        except Exception:
            continue
        return sum(t.numel() for t in tensors_in((results,), {}))
    return None


_MAX_RESULT_ELEMENTS = 1 << 20

TAKES_PIVOTS = frozenset({
    "aten::linalg_ldl_solve", "aten::linalg_lu_solve", "aten::lu_unpack"
})  # fmt: skip
"""Operators whose integers count from 1. LAPACK does not check: in torch < 2.13, a 0 crashes."""


def _stand_ins(call: Call, cut: Cut, device: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a trial. Integers are cut where they alone are lengths. What ``out=`` names
    has no elements, so that a kernel resizes it without a warning.
    """
    outputs = _names_of_outputs(call)
    named = named_arguments(call.func, call.args, {})
    takes = frozenset() if call.tensors else _takes_integers(call.func)

    def stand_in(name: str, arg: Any) -> Any:
        own = cut if cut.only in (None, name) else cut._replace(replaced=None)
        if name in outputs:
            own = own._replace(others=0, last=0, length=None)
        return small(arg, own, device, is_int=name in takes)

    args = [stand_in(name, arg) for name, arg in named.items()]
    kwargs = {name: arg for name, arg in call.kwargs.items() if name not in _NOT_TRIED}
    return args, {name: stand_in(name, arg) for name, arg in kwargs.items()}


_NOT_TRIED = ("pin_memory", "generator")


def small_values(kwargs: dict[str, Any], cut: Cut, *, keeps_known: bool = False) -> Any:
    names = [name for name in kwargs if name not in _NOT_TRIED]
    return {name: small(kwargs[name], cut, keeps_known=keeps_known) for name in names}


def small(
    arg: Any, cut: Cut, device: str = "cpu", *, keeps_known: bool = False, is_int: bool = False
) -> Any:
    """The argument `arg` as it is in a trial."""
    if isinstance(arg, torch.Tensor):
        if keeps_known and is_known(arg):
            return argument_value(arg).clone()  # a trial may write it
        return _small(arg, cut, device)
    if isinstance(arg, (list, tuple)):
        items = [small(i, cut, device, keeps_known=keeps_known, is_int=is_int) for i in arg]
        are_sizes = cut.lists and items and all(type(item) is int for item in items)
        return list(cut.of(items)) if are_sizes else items
    if isinstance(arg, torch.device):
        return torch.device(device)
    if is_int and type(arg) is int:
        return cut.int(arg)
    return cut.dtype(arg) if isinstance(arg, torch.dtype) else arg


def _small(tensor: torch.Tensor, cut: Cut, device: str) -> torch.Tensor:
    """A small tensor in place of `tensor`, with memory behind it."""
    size, dtype = cut.of(tensor.size()), cut.dtype(tensor.dtype)  # lazy parameters have no `shape`
    if device == "meta":
        return torch.empty(size, dtype=dtype, device=device)
    value = cut.integer if tensor.dtype in INTEGERS else 1
    num_elements = math.prod(size)
    memory = _filled(num_elements + MAX_TRIAL_ELEMENTS, value, dtype, device)
    return memory[:num_elements].view(size)


def _filled(num_elements: int, value: Any, dtype: torch.dtype, device: str) -> torch.Tensor:
    try:
        return torch.full((num_elements,), value, dtype=dtype, device=device)
    except NotImplementedError:  # of less than a byte: uint4, bits8, float4_e2m1fn_x2
        num_bytes = num_elements * dtype.itemsize
        return torch.full((num_bytes,), 1, dtype=torch.uint8, device=device).view(dtype)


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


NO_DTYPE = "not implemented for '"
"""Part of the error of kernels that have no code for a dtype."""
