"""Tensor subclasses: wrappers without data, overrides, and the identity of tensors and storages.

Input: tensors, storages and tensor classes. Output: wrappers, tensors of a subclass on the memory
of another, keys of storages, inner tensors of wrappers. Invariant: nothing here dispatches an
operator, except the reads of ``inner_tensors`` by the subclass itself.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from torchfake._torch.compiler.python_functions import Replacement
from torchfake._torch.contexts import Guards, uninterrupted
from torchfake._torch.private_facts import PrivateFact

disabled_torch_function = torch._C._disabled_torch_function_impl
"""The ``__torch_function__`` of ``Tensor`` subclasses that do not override torch functions."""

disabled_torch_dispatch = torch._C._disabled_torch_dispatch_impl
"""The ``__torch_dispatch__`` of plain tensors and parameters; DTensor and the like have another."""


_dict_of_tensors: Any = torch.Tensor.__dict__["__dict__"]  # in 2.11, 2.13, 2.15


all_attributes: Callable[[torch.Tensor], dict[str, Any]] = _dict_of_tensors.__get__
"""The dict that holds the attributes of a tensor, whatever its class shows as ``__dict__``."""

set_all_attributes = _dict_of_tensors.__set__
"""``(tensor, attributes)``: make `attributes` the dict that holds the attributes of `tensor`. For
a new tensor, such a dict is smaller than the dict that Python would make, which has room for the 30
attributes that the instances of a class may share; reads are faster, too.
"""

every_attribute: Any = _dict_of_tensors
"""A class attribute that reads and assigns that dict, a third faster than the two functions."""


_swaps_attributes = {
    code for code in torch.utils.swap_tensors.__code__.co_consts if hasattr(code, "co_code")
}
"""The code in ``torch.utils.swap_tensors`` that exchanges attributes, such as ``__dict__``, of two
tensors. It has to see all attributes, since the C++ tensors are exchanged too."""

SWAP = PrivateFact(
    "torch.utils.swap_tensors exchanges attributes in a function of its own",
    used_in="_torch/subclass",
    without="torch.utils.swap_tensors of fakes is refused",
    is_shortcut=False,
    check=lambda: [code.co_name for code in _swaps_attributes].count("swap_attr") == 1,
)


def _is_swapping(caller: types.CodeType) -> bool:
    """Whether attributes are read or set by ``torch.utils.swap_tensors``."""
    if caller.co_filename == torch.utils.__file__:
        SWAP.require()
    return caller in _swaps_attributes


is_function_mode_on = torch._C._is_torch_function_mode_enabled
"""Whether a ``TorchFunctionMode`` sees the next call of a torch function."""


def no_torch_functions() -> Guards:
    """Context: torch functions look for overrides neither on their arguments nor for modes."""
    return Guards(torch._C.DisableTorchFunction)


def no_subclass_functions() -> Guards:
    """Context: torch functions do not look for overrides on their arguments, only for modes."""
    return Guards(torch._C.DisableTorchFunctionSubclass)


def without_subclass_functions(function: Any, args: Any, kwargs: Any) -> Any:
    """``function(*args, **kwargs)`` in :func:`no_subclass_functions`, at a fifth of the cost."""
    c: Any = torch._C
    before = c._get_torch_function_state()
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)
    except BaseException:  # Ctrl-C before the guard was left
        c._set_torch_function_state(before)
        raise


builtin_methods = torch._C.TensorBase
"""The C++ base class whose methods and attributes FakeTensor overrides."""

make_wrapper = torch.Tensor._make_wrapper_subclass
"""``(cls, size, strides, offset, memory_format, dtype, layout, device)``: make a tensor of class
`cls` with metadata and no data. Documented only by its use in torch's subclasses (DTensor,
FakeTensor)."""


def wrapper_defaults(extra_dispatch_keys: Any) -> tuple[Any, ...]:
    """The positional arguments of :data:`make_wrapper` after the device: pinned, requires_grad,
    sizes policy, dispatch device, dispatch layout, extra dispatch keys.
    """
    return (False, False, None, False, False, extra_dispatch_keys)


def with_requires_grad(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of :data:`make_wrapper` after the class, for a leaf that requires grad. Unlike
    ``requires_grad_()`` this is allowed inside of transforms of ``torch.func``.
    """
    return (*arguments[:8], True, *arguments[9:])


def require_grad(made: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return `made`, a new tensor, which requires grad if `requires_grad`. Inside of transforms of
    ``torch.func``, ``requires_grad_(False)`` is refused too, though it changes nothing.
    """
    return made.requires_grad_() if requires_grad else made


def set_conj_and_neg(tensor: torch.Tensor, conj: bool, neg: bool) -> None:
    """Set the bits that make `tensor` a lazy conjugate or negative view."""
    if conj:
        torch._C._set_conj(tensor, True)
    if neg:
        torch._C._set_neg(tensor, True)


set_data: Callable[[torch.Tensor, torch.Tensor], None]
set_data = builtin_methods.data.__set__  # type: ignore[attr-defined]
"""``tensor.data = source``, without Python overrides of ``data``."""


def set_data_of_other_kind(wrapper: torch.Tensor, source: torch.Tensor) -> None:
    """Set ``wrapper.data = source`` where only one of the two is an inference tensor or a lazy
    conjugate. torch refuses that, but in inference mode it leaves the check to the tensors' class.
    """
    with torch.inference_mode():
        set_data(wrapper, source)


def storage_key(storage: torch.UntypedStorage) -> int:
    """The address of the C++ storage: two tensors alias if and only if they have the same key."""
    return int(storage._cdata)


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def hooks_of(tensor: torch.Tensor) -> list[dict[int, Any]]:
    """The hooks of a tensor, in the dicts that hold them; none of most tensors."""
    read = without_subclass_functions
    return [h for name in _HOOKS if (h := read(getattr, (tensor, name), {})) is not None]


def move_hooks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Move the hooks of a tensor to another, with their handles."""
    for name in _HOOKS:
        if (hooks := getattr(source, name)) is not None:
            setattr(target, name, hooks)


def make_subclass(cls: Any, data: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    """A tensor of class `cls` on the memory of `data`; the constructor of `cls` does not run."""
    tensor: torch.Tensor = torch.Tensor._make_subclass(cls, data, requires_grad)
    return tensor


_make_from = torch._C.TensorBase._make_subclass
_set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_PYTHON, _PYTHON_TLS = torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot


def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:
    """Swap the classes, attributes and C++ tensors of two tensor objects.

    ``torch.utils.swap_tensors`` refuses tensors with weak references (an LSTM has them to its
    weights) and bases of views. Neither is a problem: weak references refer to the objects, which
    stay, and a view keeps the C++ tensor that its base had. Only a live graph is a problem: see
    :func:`torchfake._torch.autograd.is_in_live_graph`.
    """
    uninterrupted(
        [
            partial(setattr, one, "__class__", other.__class__),
            partial(setattr, other, "__class__", one.__class__),
            partial(set_all_attributes, one, all_attributes(other)),
            partial(set_all_attributes, other, all_attributes(one)),
            partial(torch._C._swap_tensor_impl, one, other),
        ]
    )


def without_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside the wrappers that ``torch.func`` puts around the arguments of a function
    that it differentiates or functionalizes.
    """
    functorch = torch._C._functorch
    while functorch.is_gradtrackingtensor(tensor) or functorch.is_functionaltensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def traced_by_make_fx(is_traced: Callable[[type], bool]) -> Replacement:
    """Have ``make_fx`` trace operations on tensors of classes with ``is_traced(cls)`` that are not
    inputs of the trace: like plain tensors and torch's own fakes, they become constants.

    ``make_fx`` does not trace an operation on a tensor that has no node in the graph and is of an
    unknown class: the operation runs, and its dependence on the inputs is lost.
    ``torch.func.linearize`` traces with ``make_fx``, in a mode and after it. A trace without
    tensors of these classes does not change.
    """
    from torch.fx.experimental import proxy_tensor  # torch has imported it: in 2.11, 2.13, 2.15

    return proxy_tensor, "HANDLED_TYPES", lambda known: (*known, _Classes(is_traced))


class _Classes:
    """Equals each class with ``contains(cls)``: torch asks whether a class is in a tuple."""

    def __init__(self, contains: Callable[[type], bool]) -> None:
        self._contains = contains

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type) and self._contains(other)

    __hash__ = None  # type: ignore[assignment]


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors inside a wrapper, such as the shard of a DTensor; empty for a plain tensor."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return []
    if not torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        return []
    names, _ = tensor.__tensor_flatten__()
    inner = [getattr(tensor, name) for name in names]
    return [each for each in inner if isinstance(each, torch.Tensor)]  # others are opaque objects


def named_leaves(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors with memory of their own in nested wrappers, named as attributes of `name`; a
    plain tensor is its own leaf.
    """
    if not inner_tensors(tensor):
        yield name, tensor
        return
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    for inner in names:
        if isinstance(value := getattr(tensor, inner), torch.Tensor):
            yield from named_leaves(f"{name}.{inner}", value)


def leaf_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The leaf tensors inside `tensor`, without names."""
    return [leaf for _, leaf in named_leaves("", tensor)]


def rewrapped(tensor: Any, exchange: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A wrapper like `tensor` around ``exchange(inner)`` of each inner tensor, rebuilt as
    torch.compile does it. It has no attributes that were set on `tensor` later.
    """
    names, context = tensor.__tensor_flatten__()
    inner = {name: getattr(tensor, name) for name in names}
    inner = {k: exchange(v) if isinstance(v, torch.Tensor) else v for k, v in inner.items()}
    made: torch.Tensor = type(tensor).__tensor_unflatten__(
        inner, context, tensor.shape, tensor.stride()
    )
    return made


# ``__dict__`` of tensors whose class hides some attributes.


class ShownAttributes(dict[str, Any]):
    """The attributes of a tensor without the `hidden` ones. Each read gets them from the tensor,
    and each write sets them there. ``tensor.__dict__ = ...`` requires that this is a dict.
    """

    def __init__(self, every: dict[str, Any], hidden: frozenset[str]) -> None:
        self._every, self._hidden = every, hidden
        self._refresh()

    def _refresh(self) -> None:
        dict.clear(self)
        dict.update(self, {k: v for k, v in self._every.items() if k not in self._hidden})

    def _write(self) -> None:
        for name in self._every.keys() - dict.keys(self) - self._hidden:
            del self._every[name]
        self._every.update({k: v for k, v in dict.items(self) if k not in self._hidden})

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (self.copy(),)


def _reading(method: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: ShownAttributes, *args: Any) -> Any:
        self._refresh()
        return method(self, *args)

    return read


def _writing(method: Callable[..., Any]) -> Callable[..., Any]:
    def write(self: ShownAttributes, *args: Any, **kwargs: Any) -> Any:
        self._refresh()
        try:
            return method(self, *args, **kwargs)
        finally:
            self._write()

    return write


for _name in (
    "__getitem__", "__iter__", "__len__", "__contains__", "__eq__", "__ne__", "__repr__", "__or__",
    "__ror__", "__reversed__", "get", "keys", "values", "items", "copy",
):  # fmt: skip
    setattr(ShownAttributes, _name, _reading(getattr(dict, _name)))
for _name in (
    "__setitem__", "__delitem__", "__ior__", "update", "setdefault", "pop", "popitem", "clear",
):  # fmt: skip
    setattr(ShownAttributes, _name, _writing(getattr(dict, _name)))


def dict_property(hidden: frozenset[str]) -> Any:
    """A ``__dict__`` for a tensor class that shows, and lets programs replace, all attributes but
    the `hidden` ones. Attribute look-ups do not use the property.
    """

    def show(tensor: torch.Tensor) -> dict[str, Any]:
        every = all_attributes(tensor)
        is_swap = _is_swapping(sys._getframe(1).f_code)
        return every if is_swap else ShownAttributes(every, hidden)

    def replace(tensor: torch.Tensor, new: dict[str, Any]) -> None:
        if not _is_swapping(sys._getframe(1).f_code) and isinstance(new, dict):
            every = all_attributes(tensor)
            new = {**new, **{name: every[name] for name in hidden if name in every}}
        set_all_attributes(tensor, new)  # raises what torch raises if `new` is no dict

    return property(show, replace)
