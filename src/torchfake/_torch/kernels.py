"""Decompositions and meta kernels that torch has in Python for its operators.

Input: an operator, or a tensor. Output: Python functions that compute on meta tensors. Invariant:
torch's own functions are not changed; a changed copy has globals of its own.
"""

from __future__ import annotations

import os
import types
import weakref
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from torchfake._torch import cpp_metadata, dispatch_keys
from torchfake._torch.autograd import enable_grad
from torchfake._torch.compiler.python_functions import global_names_in, unwrap, with_globals
from torchfake._torch.dispatcher import as_eager

linear = torch.nn.functional.linear
"""The function as it is when torchfake is imported, for files that are imported later: a program
may have replaced ``torch.nn.functional.linear`` by then."""


def decomposition_of(func: Any) -> Callable[..., Any] | None:
    """Torch's Python decomposition of an operator, if it has one."""
    from torch._decomp import decomposition_table  # slow to import, so only when it is needed

    return decomposition_table.get(func)


def memory_format_of(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format of `tensor`, as seen by kernels that preserve their input's format."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(tensor)


def run_fake_impl(func: Any, sizes: Any, args: Any, kwargs: Any) -> Any:
    """Run a custom operator's ``torch.library.register_fake`` function, with `sizes` for
    ``torch.library.get_ctx()``; NotImplemented if there is none. In torch's own meta kernel of the
    operator, ``get_ctx()`` refuses to give sizes. Checked on torch 2.12 to 2.15.
    """
    from torch._library import fake_impl, simple_registry

    entry = simple_registry.singleton._data.get(func._schema.name)
    kernel = None if entry is None else entry.fake_impl.kernel
    if kernel is None:
        return NotImplemented
    with fake_impl.set_ctx_getter(lambda: sizes):
        return kernel(*args, **kwargs)


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
    names["_exec_fft"] = cpp_metadata.fft_into
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


def check_convolution(*args: Any) -> None:
    """Raise what C++ raises for the sizes of a convolution, when it chooses a kernel."""
    torch._C._select_conv_backend(*args)


@cache
def is_decomposed_in_cpp(func: Any) -> bool:
    """Whether C++ decomposes an operator before it is dispatched to Python
    (CompositeImplicitAutograd), except in inference mode: ``to`` and ``reshape``, which return
    views or copies, reach Python whole there. C++ never decomposes an operator that has a kernel
    for a device, such as ``silu_backward``.
    """
    name = func.name()
    if not dispatch_keys.has_kernel(name, "CompositeImplicitAutograd"):
        return False
    return not any(dispatch_keys.has_kernel(name, device) for device in ("CPU", "CUDA", "Meta"))


_FOR_ALL_DEVICES = (
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)


def has_kernels_of_devices(func: Any) -> bool:
    """Whether an operator has a kernel for each type of device, and none for all of them."""
    has_kernel, name = dispatch_keys.has_kernel, func.name()
    return has_kernel(name, "CPU") or not any(has_kernel(name, key) for key in _FOR_ALL_DEVICES)


def decompose(func: Any, args: Any, kwargs: Any) -> Any:
    """Run the C++ decomposition of an operator. ``func.decompose`` prefers Python functions, which
    torch's tracers use: dropout draws differently there, and copies in ``eval()``. Checked on torch
    2.13 and 2.15.
    """
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def records_bases_in_parts(func: Any) -> bool:
    """Whether torch records the base of a view not for `func` itself, but for the operators that
    C++ decomposes it into: true for ``mT``, false for ``chunk``.
    """
    key = "ADInplaceOrView"
    is_whole = dispatch_keys.has_kernel(func.name(), key)
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


class AttentionArgument(NamedTuple):
    """The properties of a query, key, value or mask that decide the attention kernel."""

    shape: torch.Size
    dtype: torch.dtype
    is_last_dim_dense: bool


def takes_cpu_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    **options: Any,
) -> bool:
    """Whether eager mode runs flash attention for CPU tensors like these. torch 2.11, 2.13, 2.15.

    Raises:
        RuntimeError: or another error, if eager has no kernel and raises it.
    """
    if mask is not None and mask.requires_grad:
        return False
    described = tuple(
        tensor
        if tensor is None
        else AttentionArgument(tensor.shape, tensor.dtype, tensor.stride()[-1:] in ((), (1,)))
        for tensor in (query, key, value, mask)
    )
    settings = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    return _takes_flash(described, tuple(options.items()), settings)


_FLASH = 1  # c10: SDPBackend.h


@lru_cache(maxsize=256)
def _takes_flash(described: tuple[AttentionArgument | None, ...], options: Any, _: Any) -> bool:
    """Whether eager runs flash attention, found with tensors that have one row of memory."""
    tensors: list[torch.Tensor | None] = []
    with as_eager():
        for each in described:
            if each is None:
                tensors.append(None)
                continue
            row = torch.empty(each.shape[-1:] if each.is_last_dim_dense else (), dtype=each.dtype)
            tensors.append(row.expand(each.shape))
        choose: Any = torch._fused_sdp_choice
        return bool(choose(*tensors, **dict(options)) == _FLASH)


def attention_priority() -> list[int]:
    """The order in which C++ tries the kernels of attention on CUDA, by ``SDPBackend`` numbers."""
    order: list[int] = torch._C._get_sdp_priority_order()
    return order


def prefers_cudnn_attention() -> bool:
    """Whether cuDNN's attention may come first: unless the environment deprioritises it."""
    return os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"


_version = tuple(int(part) for part in torch.__version__.split(".")[:2])


def has_meta_kernel_of_whole_convolution() -> bool:
    """Whether ``aten._convolution`` runs on meta tensors: since torch 2.13."""
    return _version >= (2, 13)


# The answers below were found with builds for CUDA 13, by tests/cuda_stand_in. For attention, 2.12
# behaves like 2.13, and 2.14 like 2.15.


def cudnn_attention_takes_256(major: int) -> bool:
    """Whether cuDNN's attention takes heads of 256: on Hopper, and since 2.14 on Blackwell."""
    return major == 9 or (major == 10 and _version >= (2, 14))


def cudnn_attention_trains_all_widths() -> bool:
    """Whether cuDNN's attention has gradients for all of its head widths: before 2.14."""
    return _version < (2, 14)


def efficient_attention_shares_keys() -> bool:
    """Whether the memory-efficient kernel takes fewer heads of keys than of queries: from 2.14."""
    return _version >= (2, 14)


def attention_shares_one_head() -> bool:
    """Whether all kernels take one head of keys for any number of heads of queries: from 2.14."""
    return _version >= (2, 14)


def efficient_attention_trains_masks() -> bool:
    """Whether the memory-efficient kernel saves what the mask's gradient needs: since 2.14."""
    return _version >= (2, 14)


def attention_seed_is_always_on_cpu() -> bool:
    """Whether the memory-efficient kernel always gives a seed on the CPU: before 2.14."""
    return _version < (2, 14)


def cublas_workspace_is_kept() -> bool:
    """Whether torch gives each handle of cuBLAS a workspace for good: from 2.12 to 2.14. In 2.15 it
    allocates one for each call.
    """
    return _version < (2, 15)


@cache
def attention_adds_batch_dim() -> bool:
    """Whether torch adds a batch dim to attention with three dims: since torch 2.14."""
    own_hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with as_eager(), enable_grad(), own_hooks:  # a checkpoint counts what is saved
        tensor = torch.ones(1, 1, 1, requires_grad=True)
        result: Any = torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
        return bool(result.grad_fn.name().startswith("Squeeze"))


@cache
def cpu_attention_allows_causal_mask() -> bool:
    """Whether flash attention on the CPU takes a mask and ``is_causal``: in 2.13, not in 2.15."""
    with as_eager():
        tensor = torch.ones(1, 1, 1, 1)
        attention: Any = torch.nn.functional.scaled_dot_product_attention
        try:
            attention(tensor, tensor, tensor, attn_mask=tensor, is_causal=True)
        except RecursionError:
            raise
        except RuntimeError:
            return False
        return True


_KEYS = torch._C.DispatchKeySet
_META, _CUDA = (
    _KEYS(key).raw_repr() for key in (torch._C.DispatchKey.Meta, torch._C.DispatchKey.CUDA)
)
_for_cuda: list[torch.library.Library] = []  # own the registrations


def declare_on_cuda(op: Any) -> None:
    """Tell a build without CUDA that CUDA has a kernel for `op`."""
    if not dispatch_keys.has_kernel(op.name(), "CUDA"):
        library = torch.library.Library("aten", "IMPL")
        library.impl(op, _no_kernel, "CUDA")
        _for_cuda.append(library)


def run_whole_on_cuda(op: Any) -> None:
    """Run `op` as the single operator that it is on CUDA, for wrappers of fakes on CUDA.

    For a device without a kernel, C++ decomposes `op` above autograd. So autograd runs with CUDA's
    keys, and a build without CUDA is told that CUDA has a kernel. The kernel does not run, since
    Python's key comes first. torch 2.11 to 2.15.
    """
    if dispatch_keys.CUDA_WRAPPER_KEY.has_kernel(op):
        return
    declare_on_cuda(op)

    def kernel(redispatch: Callable[..., Any], keys: Any, *args: Any) -> Any:
        return redispatch(_with_cuda_for_meta(keys.raw_repr()), *args)

    dispatch_keys.CUDA_WRAPPER_KEY.register_with_keys(op, kernel)


@cache
def _with_cuda_for_meta(keys: int) -> Any:
    return _KEYS.from_raw_repr(keys & ~(_META & ~_CUDA) | (_CUDA & ~_META))


def _no_kernel(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("this build of torch has no kernels for CUDA")


def name_in_scripts(replacement: Any, original: Any) -> None:
    """Have torch.jit.script compile calls of `replacement` like those of `original`, if that is an
    operator in scripts, which are found by the function's identity. torch 2.12 to 2.15.
    """
    operators = torch.jit._builtins._get_builtin_table()
    name = operators.get(id(original))
    if name is not None:
        operators[id(replacement)] = name
        weakref.finalize(replacement, operators.pop, id(replacement), None).atexit = False
