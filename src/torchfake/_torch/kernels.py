"""Decompositions and meta kernels that torch has in Python for its operators.

Input: an operator, or a tensor. Output: Python functions that compute on meta tensors. Invariant:
torch's own functions are not changed; a changed copy has globals of its own. Called by:
``_operators/interpreter`` and ``_operators/meta_kernels``, ``_core/schemas`` and
``inspect/flops`` (``is_decomposed_in_cpp``).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch

from torchfake._torch.python_functions import global_names_in, unwrap, with_globals


def decomposition_of(func: Any) -> Callable[..., Any] | None:
    """Torch's Python decomposition of an operator, if it has one."""
    from torch._decomp import decomposition_table  # slow to import, so only when it is needed

    return decomposition_table.get(func)


def memory_format_of(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format of `tensor`, as kernels see it that preserve the format of their input."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(tensor)


@cache
def meta_kernel_of(func: Any, device_type: str) -> Callable[..., Any] | None:
    """Torch's Python meta kernel of an operator, specialised to `device_type`.

    Some kernels in ``torch._meta_registrations`` choose the strides of their results by
    ``device_hint(tensor)``, which says CUDA for a meta tensor. None if the kernel of `func` does
    not call it, directly or indirectly.
    """
    from torch import _meta_registrations as registrations
    from torch._decomp import meta_table

    if any(argument.is_out for argument in func._schema.arguments):
        return None  # out= is handled by the decorators, which are removed here
    kernel = unwrap(meta_table.get(func))
    if not isinstance(kernel, types.FunctionType) or kernel.__module__ != registrations.__name__:
        return None
    users = _users_of_device_hint(registrations)
    if kernel.__code__ not in users:
        return None
    names = {**vars(registrations), "device_hint": lambda tensor: device_type}
    for name, value in vars(registrations).items():
        function = unwrap(value)
        if isinstance(function, types.FunctionType) and function.__code__ in users:
            names[name] = with_globals(function, names)
    return with_globals(kernel, names)


@lru_cache(maxsize=1)
def _users_of_device_hint(registrations: types.ModuleType) -> frozenset[types.CodeType]:
    """The functions of a module that call ``device_hint``, directly or through each other."""
    unwrapped = {name: unwrap(value) for name, value in vars(registrations).items()}
    functions = {n: f for n, f in unwrapped.items() if isinstance(f, types.FunctionType)}
    users = {"device_hint"}
    while True:
        found = {name for name, f in functions.items() if users & global_names_in(f.__code__)}
        if found <= users:
            return frozenset(functions[name].__code__ for name in found)
        users |= found


def is_decomposed_in_cpp(func: Any) -> bool:
    """Whether C++ decomposes an operator, as a rule, before it is dispatched to Python
    (CompositeImplicitAutograd). In inference mode it does not: ``to`` and ``reshape``, which give
    views or copies, then arrive as they are.
    """
    key = "CompositeImplicitAutograd"
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def is_noted_in_parts(func: Any) -> bool:
    """Whether torch notes the base of a view for the operators of which C++ composes it, and not
    for itself: ``mT`` is so, ``chunk`` is not.
    """
    key = "ADInplaceOrView"
    is_whole = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
    return is_decomposed_in_cpp(func) and not is_whole


def names_of_functions_with_device() -> list[tuple[Any, str]]:
    """The functions of torch, and methods of tensors, that take ``device=``: owner and name."""
    found: dict[tuple[int, str], tuple[Any, str]] = {}
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        if (
            namespace != "aten"
            or name == "Generator"
            or not any(a.name == "device" for a in schema.arguments)
        ):
            continue
        owners = [(torch, name), (torch.Tensor, name)]
        owners += [(torch.fft, name[4:])] if name.startswith("fft_") else []
        for owner, attribute in owners:
            if attribute[0] != "_" and hasattr(owner, attribute):
                found[id(owner), attribute] = owner, attribute
    return [*found.values(), (torch.Tensor, "new_tensor")]
