"""autocast for fakes: the casts that C++ autocast makes for a real tensor on the fake's device.

Input: a call of a torch function while autocast is on for some device type. Output: its result,
with the casts made. Invariant: torch's dispatcher is changed only while :func:`run_with_autocast`
runs. Called by: ``_tensor/torch_function``.

C++ autocast looks at the C++ device, which is meta, so it never casts a fake. To cast at the level
of torch functions alone is not enough: what autocast lists are operators, and most of them are
called from inside others (``torch.einsum`` on CPU calls ``bmm``, ``nn.LSTM`` calls ``linear``). So
the casts are made where torch makes them: in kernels for an autocast dispatch key, above autograd.
The key is the one that torch reserves for Graphcore's IPU, whose backend was never in torch itself
and is no longer developed. No tensor carries it; :func:`run_with_autocast` puts it into the
thread's set of included keys while one torch function runs. The kernels are registered when
autocast first meets a fake, not at import.

Two cases differ from eager. Inside ``torch.vmap``, an operation whose arguments are all batched
reaches no torch function of ours and is not cast. And where eager runs a fused CPU kernel, fakes
run its composite: a CPU ``nn.LSTM`` under autocast has the dtypes of torch without oneDNN.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from torchfake._contexts import Setting, holding
from torchfake._core.metadata import Metadata
from torchfake._core.storage import Storage
from torchfake._tensor.autocast_lists import COMPOSED_OF_LISTED, OTHERS, POLICIES
from torchfake._torch import dispatcher, subclass

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Policy = Callable[[Any, Args, Kwargs, str], tuple[Any, Args, Kwargs]]


def run_with_autocast(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a torch function with autocast for the devices that fakes report."""
    if getattr(func, "__name__", None) == "__get__":  # x.shape, x.grad: nothing to cast
        with subclass.no_subclass_functions():
            return func(*args, **kwargs)
    _register()
    with (
        _autocast_key_enabled(),
        dispatcher.AUTOCAST_KEY.included(),
        subclass.no_subclass_functions(),
    ):
        return func(*args, **kwargs)


def _autocast_key_enabled() -> Setting:
    """Context: kernels of our autocast key run, if it is included."""
    device_type = dispatcher.AUTOCAST_KEY_DEVICE_TYPE
    return Setting(
        partial(torch.is_autocast_enabled, device_type),
        partial(torch.set_autocast_enabled, device_type),
        True,
    )


# The kernels.

_registering = threading.Lock()
_registered = threading.Event()


def _register() -> None:
    """Register a kernel for each operator that autocast lists, at the first call."""
    if _registered.is_set():
        return
    with holding(_registering):
        if not _registered.is_set():
            for name, policies in _policies_by_operator().items():
                op = _operator(name)
                dispatcher.AUTOCAST_KEY.register(op, _kernel(op, policies))
            _registered.set()


def _policies_by_operator() -> dict[str, dict[str, Policy]]:
    """For each operator that the installed torch autocasts: its policy on each device type."""
    found: dict[str, dict[str, Policy]] = {}
    for device_type, table in POLICIES.items():
        for name in table.keys() & dispatcher.autocast_operators(device_type):
            found.setdefault(name, {})[device_type] = _POLICIES[table[name]]
    for name in COMPOSED_OF_LISTED:
        found[name] = dict.fromkeys(POLICIES, _cast_result)
    return found


def _operator(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel(op: Any, policies: dict[str, Policy]) -> Callable[..., Any]:
    """The kernel of `op`: applies the policies of the device types that are on, then runs `op`."""

    def kernel(redispatch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        applicable = [
            device_type
            for device_type in _device_types(args, kwargs)
            if _list_of(device_type) in policies and torch.is_autocast_enabled(device_type)
        ]
        if not applicable:
            return redispatch(*args, **kwargs)
        target = op
        for device_type in applicable:
            target, args, kwargs = policies[_list_of(device_type)](
                target, args, kwargs, device_type
            )
        with dispatcher.AUTOCAST_KEY.excluded():  # as in C++: what `op` calls is not cast
            return target(*args, **kwargs)

    return kernel


def _list_of(device_type: str) -> str:
    """The device type whose list of operators holds for `device_type`."""
    return device_type if device_type in POLICIES else OTHERS


def _device_types(args: Args, kwargs: Kwargs) -> list[str]:
    """The device types that the fakes among the arguments report, each once."""
    records = (_metadata_record(tensor) for tensor in _tensors(args, kwargs))
    return list(dict.fromkeys(record.device.type for record in records if record is not None))


def _metadata_record(tensor: torch.Tensor) -> Metadata | None:
    """A fake's metadata record; None for any other tensor. (The class imports this file.)"""
    return getattr(tensor, "_fake_meta", None)


def _tensors(args: Args, kwargs: Kwargs) -> Iterator[torch.Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, torch.Tensor))


# The policies: each turns one call into another, for one device type.


def _lower(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Run in the dtype of autocast."""
    dtype = torch.get_autocast_dtype(device_type)
    return op, *_cast_all(args, kwargs, device_type, dtype)


def _fp32(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Run in float32."""
    return op, *_cast_all(args, kwargs, device_type, torch.float32)


def _set_dtype(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Compute and return float32 by the operator's own `dtype`, unless the caller passed one."""
    position = [argument.name for argument in op._schema.arguments].index("dtype")
    given = args[position] if len(args) > position else kwargs.get("dtype")
    if given is None and _is_eligible(args[0], device_type):
        args, kwargs = args[:position], {**kwargs, "dtype": torch.float32}
    return op, args, kwargs


def _append_dtype(
    op: Any, args: Args, kwargs: Kwargs, device_type: str
) -> tuple[Any, Args, Kwargs]:
    """Run the overload of `norm` that takes a `dtype`, with defaults for arguments left out."""
    dtype = torch.float32 if _is_eligible(args[0], device_type) else args[0].dtype
    defaults = [argument.default_value for argument in op._schema.arguments]
    with_dtype = {
        torch.ops.aten.norm.Scalar: torch.ops.aten.norm.ScalarOpt_dtype,
        torch.ops.aten.norm.ScalarOpt_dim: torch.ops.aten.norm.ScalarOpt_dim_dtype,
    }
    return with_dtype[op], (*args, *defaults[len(args) :]), {**kwargs, "dtype": dtype}


def _promote(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Run in float32 if any argument has that, else in the dtype of autocast."""
    lower = widest = torch.get_autocast_dtype(device_type)
    for tensor in _tensors(args, kwargs):
        if not _is_eligible(tensor, device_type) or widest is torch.float32:
            continue
        if tensor.dtype not in (lower, torch.float32):
            raise RuntimeError(  # torch's own message: code may look for it
                f"Unexpected floating ScalarType in at::autocast::prioritize: {op} got a tensor of "
                f"{tensor.dtype} under {device_type} autocast with dtype={lower}, which can "
                f"promote only {lower} and torch.float32; cast it first"
            )
        widest = tensor.dtype
    return op, *_cast_all(args, kwargs, device_type, widest)


def _banned(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Raise, as torch does."""
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: "
        "float16 probabilities near 0 and 1 lose their gradients. Leave out the sigmoid before the "
        "loss and use torch.nn.functional.binary_cross_entropy_with_logits or "
        "torch.nn.BCEWithLogitsLoss, which are safe to autocast"
    )


def _cast_result(op: Any, args: Args, kwargs: Kwargs, device_type: str) -> tuple[Any, Args, Kwargs]:
    """Run in float32 and cast the result: the operator ends in a product that autocast lists."""
    if not _is_eligible(args[0], device_type):
        return op, args, kwargs
    lower = torch.get_autocast_dtype(device_type)

    def run(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs).to(lower)

    return run, *_cast_all(args, kwargs, device_type, torch.float32)


_POLICIES: dict[str, Policy] = {
    "lower": _lower,
    "fp32": _fp32,
    "fp32_set_dtype": _set_dtype,
    "fp32_append_dtype": _append_dtype,
    "promote": _promote,
    "banned": _banned,
}


# The casts.


def _is_eligible(tensor: torch.Tensor, device_type: str) -> bool:
    """Whether autocast may cast `tensor`.

    A plain meta tensor beside a fake was made by a factory inside a C++ composite, after the mode
    was left (an LSTM's initial state), and counts as being on the fake's device.
    """
    dtype = tensor.dtype
    if not dtype.is_floating_point or dtype is torch.float64:
        return False
    record = _metadata_record(tensor)
    own = tensor.device.type if record is None else record.device.type
    return own == device_type or (record is None and own == "meta")


def _cast_all(
    args: Args, kwargs: Kwargs, device_type: str, dtype: torch.dtype
) -> tuple[Args, Kwargs]:
    """The arguments with every eligible tensor in `dtype`, lists of tensors opened."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dtype is dtype or not _is_eligible(value, device_type):
                return value
            return _cast(value, dtype, torch.get_autocast_dtype(device_type))
        if isinstance(value, (list, tuple)):
            return [cast(item) for item in value]
        return value

    return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}


_casts: weakref.WeakKeyDictionary[Storage, dict[tuple[Metadata, torch.dtype], Any]]
_casts = weakref.WeakKeyDictionary()


def _cast(tensor: torch.Tensor, dtype: torch.dtype, lower: torch.dtype) -> torch.Tensor:
    """`tensor` in `dtype`; for a float32 weight, the cast of an earlier use if that is still alive.

    torch keeps its casts of weights until the outermost autocast context ends, which C++ sees and
    Python does not. Here a cast lives as long as something else refers to it, in training the
    autograd graph, and is used again only while the weight has not been written. Tensors in the
    graph are those of eager; without grad, a weight that is used twice is cast twice.
    """
    record = _metadata_record(tensor)
    if not (
        record is not None
        and dtype is lower
        and tensor.dtype is torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and torch.is_grad_enabled()
        and torch.is_autocast_cache_enabled()
    ):
        return tensor.to(dtype)
    known = _casts.setdefault(tensor._fake_storage, {})  # type: ignore[attr-defined]
    reference, version = known.get((record, dtype), (_no_cast, -1))
    found: torch.Tensor | None = reference()
    if found is None or version != tensor._version or _leaf_of(found) is not tensor:
        found = tensor.to(dtype)
        known[record, dtype] = weakref.ref(found), tensor._version
    return found


def _no_cast() -> None:
    return None


def _leaf_of(cast: torch.Tensor) -> Any:
    """The leaf that `cast` was cast from: two leaves can share one storage and one record."""
    node = cast.grad_fn
    return None if node is None else getattr(node.next_functions[0][0], "variable", None)
