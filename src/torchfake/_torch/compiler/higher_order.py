"""Operators that take functions (``cond``, ``scan``, ``flex_attention``): their kernels and modes.

Input: a higher-order operator, the dispatch key of fakes. Output: a kernel for the key; torch's own
kernel for plain tensors; contexts in which operators are called from inside a mode. Invariant:
torch's own registrations for an operator stay. Checked on torch 2.13 and 2.15.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention as _flex_attention
from torch._higher_order_ops.flex_attention import flex_attention_backward as _flex_backward
from torch.utils import _pytree as pytree

from torchfake._torch import dispatch_keys
from torchfake._torch.compiler.python_functions import Replacement, with_globals
from torchfake._torch.contexts import Guards, Restoring, Together
from torchfake._torch.private_facts import PrivateFact

flex_attention: Any = _flex_attention
flex_attention_backward: Any = _flex_backward

_KEYS = torch._C.DispatchKey
_OF_ANY_DEVICE = (_KEYS.CompositeExplicitAutograd, _KEYS.CPU)
_NAMES_OF_MODE = ("_get_current_dispatch_mode", "get_current_dispatch_mode")


FLEX_ATTENTION_MODULE = "torch.nn.attention.flex_attention"


def no_warning_of_unfused_attention(is_exempt: Callable[[Any], bool]) -> Replacement:
    """Keep :data:`FLEX_ATTENTION_MODULE` from warning, once in a process, that uncompiled
    ``flex_attention`` makes all scores, for queries with ``is_exempt(query)``, where it does not.
    """

    def replace(original: Any) -> Any:
        @functools.wraps(original)
        def warn_once(warning_id: str, *args: Any, **kwargs: Any) -> None:
            query = sys._getframe(1).f_locals.get("query")
            if warning_id != "flex_attention_performance" or not is_exempt(query):
                original(warning_id, *args, **kwargs)

        return warn_once

    return sys.modules[FLEX_ATTENTION_MODULE], "_warn_once", replace


UNFUSED_ATTENTION = PrivateFact(
    "flex_attention has a local variable query where it warns",
    used_in="_torch/compiler/higher_order",
    without="It warns of scores that are made, which are not for fakes",
    is_shortcut=True,
    check=lambda: "query" in _module_of_attention().flex_attention.__code__.co_varnames,
)


def _module_of_attention() -> Any:
    return importlib.import_module(FLEX_ATTENTION_MODULE)


def dispatched_operators() -> list[Any]:
    """The operators dispatched by the keys of their arguments. The others run Python at once."""
    operators = torch._ops._higher_order_ops.values()
    own = {dispatch_keys.ZERO_WRAPPER_KEY.key}  # which has kernels in all of them
    return [op for op in operators if op.py_kernels.keys() - own]


def add_kernel(op: Any, key: Any, kernel: Callable[..., Any]) -> None:
    """Run ``kernel(*args, **kwargs)`` for `op`, where a tensor or the thread has a dispatch key."""
    if key not in op.py_kernels:
        op.py_impl(key)(kernel)
        op._dispatch_cache.clear()


def add_class(op: Any, cls: type, kernel: Callable[..., Any]) -> None:
    """Run `kernel` for `op` below autograd, for tensors of class `cls` where no mode is on."""
    if cls not in op.python_key_table:
        op.py_impl(cls)(kernel)


def share_kernels(cls: type, other: Any) -> None:
    """Run the kernels of `cls` also for tensors of class `other`, or of a class that equals it."""
    for op in dispatched_operators():
        if cls in op.python_key_table:
            op.python_key_table.setdefault(other, op.python_key_table[cls])


def kernel_for_tensors(op: Any) -> Callable[..., Any] | None:
    """Torch's kernel of `op` for plain tensors on the CPU, or on any device: a copy that may run
    while a mode is on, which most of these kernels refuse.
    """
    found = next((op.py_kernels[key] for key in _OF_ANY_DEVICE if key in op.py_kernels), None)
    if not isinstance(found, types.FunctionType):
        return found  # None, or a partial of torch's, which looks for no mode
    names = dict.fromkeys(_NAMES_OF_MODE, lambda: None)
    return with_globals(found, {**found.__globals__, **names})


def add_transforms(
    op: Any, is_exempt: Callable[[tuple[Any, ...]], bool], rule: Callable[..., Any]
) -> None:
    """Run ``rule(transform, original, interpreter, *args)`` for `op` in vmap, grad and jvp where
    ``is_exempt(args)``; `original` is None where torch has no rule.
    """
    for name in ("Vmap", "Grad", "Jvp"):
        key = getattr(torch._C._functorch.TransformType, name)
        original = op.functorch_table.get(key)
        if not hasattr(original, "is_of_fakes"):
            op.functorch_table[key] = _transform(key, original, is_exempt, partial(rule, name))


def _transform(key: Any, original: Any, is_exempt: Any, rule: Callable[..., Any]) -> Any:
    def transform(interpreter: Any, *args: Any, **kwargs: Any) -> Any:
        if is_exempt(args):
            return rule(original, interpreter, *args, **kwargs)
        if original is None:
            raise KeyError(key)  # as without an entry in the table
        return original(interpreter, *args, **kwargs)

    transform.is_of_fakes = True  # type: ignore[attr-defined]
    return transform


def trees_in_cond(is_exempt: Callable[[tuple[Any, ...]], bool]) -> Replacement:
    """Flatten operands of ``cond`` in containers, which the operator refuses, where
    ``is_exempt(args)``. For all other arguments, torch.compile does that.
    """

    def replace(original: Any) -> Any:
        @functools.wraps(original)
        def call(self: Any, pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
            has_tree = any(isinstance(operand, (dict, list, tuple)) for operand in operands)
            if not has_tree or not is_exempt((pred, operands)):
                return original(self, pred, true_fn, false_fn, operands)
            leaves, spec = pytree.tree_flatten(tuple(operands))
            on_leaves = [_on_leaves(branch, spec) for branch in (true_fn, false_fn)]
            return original(self, pred, *on_leaves, tuple(leaves))

        return call

    return type(torch.ops.higher_order.cond), "__call__", replace


def _on_leaves(branch: Callable[..., Any], spec: Any) -> Callable[..., Any]:
    return lambda *flat: branch(*pytree.tree_unflatten(flat, spec))


def uncaptured_error(message: str) -> Exception:
    """The RuntimeError that eager raises where a function cannot be traced."""
    from torch._dynamo.exc import UncapturedHigherOrderOpError

    error: Exception = UncapturedHigherOrderOpError(message)
    return error


class mode_put_back(Restoring):
    """Context: `mode` is back in its slot while it handles an operator, for which torch has taken
    the mode out. With None, nothing changes.
    """

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._is_in = False

    def change(self) -> None:
        if self._mode is not None and torch._C._get_dispatch_mode(self._mode._mode_key) is None:
            self._is_in = True
            torch._C._set_dispatch_mode(self._mode)

    def restore(self) -> None:
        if self._is_in:
            self._is_in = False
            torch._C._unset_dispatch_mode(self._mode._mode_key)


def below(keys: Any) -> Together:
    """Context: operators are dispatched below autograd, and not to `keys`. If one :class:`Guards`
    entered both guards, autograd would stay off afterwards.
    """
    return Together(
        Guards(partial(torch._C._ExcludeDispatchKeyGuard, keys)),
        Guards(torch._C._AutoDispatchBelowAutograd),
    )


def indexing_by_numbers_in_tensors() -> Any:
    """Context: ``table[i]`` with tensors of no dims gathers, as torch has it in ``score_mod``."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()
