"""The autograd engine: modes, histories, live graphs, views, version counters, sequence numbers.

Input: tensors, or nothing (the state of the running thread). Output: autograd's state for the
tensors; views and version counters like those of other tensors. Invariant: a query changes no
tensor and no graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointError

from torchfake._torch.contexts import Guards, Setting

_normal_mode = partial(torch._C._InferenceMode, False)
"""Makes a guard that leaves inference mode, and has autograd record."""


def inference_mode(on: bool) -> Guards:
    """Context: ``torch.inference_mode``, which is exited wherever an interrupt arrives."""
    return Guards(partial(torch._C._InferenceMode, on))


def no_grad() -> Setting:
    """Context: ``torch.no_grad``, which is exited wherever an interrupt arrives."""
    return Setting(torch.is_grad_enabled, torch._C._set_grad_enabled, False)


def enable_grad() -> Setting:
    """Context: ``torch.enable_grad``, which is exited wherever an interrupt arrives."""
    return Setting(torch.is_grad_enabled, torch._C._set_grad_enabled, True)


def history_of(tensor: torch.Tensor) -> Any:
    """The node that made `tensor`; None for a leaf, and for a view whose history is forbidden.

    A view that was made in no_grad, in inference mode or by an operator with several results
    (chunk) has no history once its base, or another view of it, was written: autograd raises.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def is_forbidden_view(tensor: torch.Tensor) -> bool:
    """Whether the history of `tensor` is forbidden: see :func:`history_of`."""
    try:
        return tensor.grad_fn is None and False
    except RuntimeError:
        return True


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a leaf; None for any other tensor."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except RuntimeError:  # a view whose history is forbidden
        return None


def view_like(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """A view of the whole of `base`, on which autograd allows the same operations as on `view`, a
    view of another tensor. `view` must not be used afterwards.
    """
    version = base._version
    is_forbidden, requires_grad = is_forbidden_view(view), view.requires_grad
    if is_forbidden or _was_base_written_since(view):
        set_version(base, version - 1)  # as if made before the last write
    with no_grad():
        made = base.view_as(base)
    allow_as(made, view)
    if is_forbidden and requires_grad:
        made.requires_grad_()  # while it is allowed
    set_version(base, version)
    return made


def exchange(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Exchange what two Python objects stand for, with its history. Impossible, and nothing is
    changed, if something in C++ refers weakly to one of them.
    """
    try:
        torch._C._swap_tensor_impl(tensor, other)
    except RuntimeError:
        return False
    return True


@cache
def with_nodes_named(name: str, function: Any) -> Any:
    """The autograd function `function`, with nodes of another name."""
    named: Any = type(name, (function,), {})
    named._backward_cls.__name__ = name
    return named


def allow_as(view: torch.Tensor, other: torch.Tensor) -> None:
    """Have autograd allow the same writes to `view` as to the view `other`."""
    private: Any = torch._C._autograd
    private._set_creation_meta(view, private._get_creation_meta(other))


def forbid_writes(view: torch.Tensor) -> None:
    """Have autograd refuse writes to `view`, and gradients after writes to its base."""
    private: Any = torch._C._autograd
    private._set_creation_meta(view, private.CreationMeta.MULTI_OUTPUT_NODE)


def _was_base_written_since(view: torch.Tensor) -> bool:
    """Whether a view would have a history, or a forbidden one, if its base required a gradient."""
    base = view._base
    if base is None or base.requires_grad or not (base.is_floating_point() or base.is_complex()):
        return False
    base.requires_grad_()
    try:
        return view.grad_fn is not None
    except (RuntimeError, IndexError):  # forbidden; the base has another shape by now
        return True
    finally:
        base.requires_grad_(False)


def version_of(tensor: torch.Tensor) -> int | None:
    """``tensor._version``; None for an inference tensor, which has no version counter."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set ``tensor._version``, for all tensors that share the version counter."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def share_version_counter(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a write to one of two tensors is a write to the other, as autograd counts them."""
    version = version_of(one)
    if version is None or version_of(other) != version:
        return False
    set_version(one, version + 1)
    share = other._version == version + 1
    set_version(one, version)
    return share


def version_counter_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the version counter of `tensor`, and no memory. The caller is in a context in
    which nothing is dispatched to the class of `tensor`.
    """
    made = torch._C.TensorBase.detach(tensor)
    if not made.is_meta:
        made.data = torch.empty(0, dtype=made.dtype, device=made.device)
    return made


def examining() -> Guards:
    """Context in which :func:`standing_of` may be called.

    Nothing is dispatched to the class of a tensor, which would test for DTensor and import it
    (0.5 s), and no ``__torch_function__`` is called: a lazy parameter's refuses nearly all calls.
    """
    return Guards(
        torch._C.DisableTorchFunctionSubclass, torch._C._DisableTorchDispatch, _normal_mode
    )


class Standing(NamedTuple):
    """The state that the autograd engine keeps for a tensor."""

    history: Any = None  # the node that made it; None for a leaf
    gradient: torch.Tensor | None = None  # of a leaf
    is_in_live_graph: bool = False  # see the function of that name


def standing_of(tensor: torch.Tensor) -> Standing:
    """The autograd engine's state for `tensor`, in :func:`examining`. The state is empty for a view
    whose history is forbidden, as in :func:`history_of`.
    """
    try:
        history = tensor.grad_fn
    except RuntimeError:
        return Standing()
    gradient = None if history is not None else tensor.grad
    if not tensor.requires_grad or tensor.is_inference():
        return Standing(history, gradient)
    holder: Any = tensor
    num_uses = holder._use_count()
    view: Any = tensor.view_as(tensor)
    node = view.grad_fn.next_functions[0][0]  # holds the leaf: counted if just created
    del view
    return Standing(history, gradient, node is not None and holder._use_count() == num_uses)


def is_in_live_graph(leaf: torch.Tensor) -> bool:
    """Whether a graph that is alive would accumulate a gradient into `leaf`.

    A live graph that contains the leaf holds its AccumulateGrad node, which holds the leaf. If
    there is none, using the leaf creates the node, and the use count of the leaf goes up.
    """
    with examining():
        return standing_of(leaf).is_in_live_graph


def needs_gradient(tensor: torch.Tensor) -> bool:
    """Whether operators on `tensor` are differentiated, backward or forward, as C++ decides it in
    ``_may_require_fw_or_bw_grad``.
    """
    is_in_dual_level = torch.autograd.forward_ad._current_level >= 0
    return is_in_dual_level or (torch.is_grad_enabled() and tensor.requires_grad)


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is an argument inside a transform of ``torch.func``."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_in_transform(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is an argument of a ``torch.func`` transform that still runs.
    (``torch.func.vjp`` gives a function that runs later.)
    """
    dead_level = -2
    return is_transformed(tensor) and torch._C._functorch.maybe_get_level(tensor) != dead_level


innermost_transform = torch._C._functorch.peek_interpreter_stack
"""The innermost transform of ``torch.func`` that runs, or None."""


def are_transforms_running() -> bool:
    """Whether a transform of ``torch.func`` runs: ``requires_grad_()`` is refused inside of it."""
    return innermost_transform() is not None


def count_writes(tensor: torch.Tensor, num_writes: int) -> None:
    """Count `num_writes` writes in the version counter of a tensor."""
    counted = (tensor,)
    for _ in range(num_writes):
        _increment_version(counted)


_increment_version = torch._C._increment_version


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is an argument inside ``torch.func.vmap``, and stands for all its rows."""
    return bool(torch._C._functorch.is_batchedtensor(tensor))


def without_levels(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside all wrappers that transforms of ``torch.func`` have put around it."""
    while is_transformed(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_functionalized(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is an argument inside ``torch.func.functionalize``, at any level."""
    functorch = torch._C._functorch
    while is_transformed(tensor) and not functorch.is_functionaltensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return bool(functorch.is_functionaltensor(tensor))


def in_outer_level() -> AbstractContextManager[Any]:
    """Context: operations belong to the transform around the innermost one that is running."""
    from torch._functorch import pyfunctorch

    return pyfunctorch.temporarily_pop_interpreter_stack()


class _AliasAs(TorchDispatchMode):
    """A mode in which ``aten.alias(tensor)`` returns ``make(tensor)``."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.make = make

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.alias.default:
            return self.make(args[0])
        return func(*args, **(kwargs or {}))


def with_inner_tensor(
    tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """`tensor`, an argument inside transforms, with ``make(inner)`` in place of the inner tensor.
    For autograd the result is a view of `tensor` in all outer transforms.
    """
    with in_outer_level(), _AliasAs(make):
        made: torch.Tensor = torch.ops.aten.alias.default(tensor)
        return made


def device_expected_at(node: Any, index: int) -> torch.device:
    """The device, in C++, of gradients that reach input `index` of a node: in 2.12 to 2.15."""
    return node._input_metadata[index].device  # type: ignore[no-any-return]


def next_sequence_number() -> int:
    """The sequence number of the graph node that this thread will create next."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


def is_later(node: Any, number: int) -> bool:
    """Whether a graph node was created with or after sequence number `number`; False for None."""
    return node is not None and number <= node._sequence_nr() < FIRST_LEAF_NUMBER


FIRST_LEAF_NUMBER = 1 << 63
"""AccumulateGrad nodes of leaves have sequence numbers from here on, other nodes smaller ones."""


def is_going_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def running_sequence_number() -> int | None:
    """The sequence number of the node that a backward pass is running on this thread, if any."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def saved_by_running_node(*names: str) -> list[torch.Tensor]:
    """The tensors saved by the node that a backward pass runs, for use in a hook of that node; none
    under a checkpoint, which hands out each tensor once, to the node.
    """
    node: Any = torch._C._current_autograd_node()
    with contextlib.suppress(CheckpointError):
        return [getattr(node, f"_saved_{name}") for name in names]
    return []


def saved_by_running_node_of(name: str, *names: str) -> list[torch.Tensor]:
    """The tensors saved by the running node, if it has this name; none under a checkpoint."""
    node: Any = torch._C._current_autograd_node()
    return [] if node is None or node.name() != name else saved_by_running_node(*names)
