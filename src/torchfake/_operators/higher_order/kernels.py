"""The kernel that each higher-order operator has for fakes.

Input: an operator and its arguments. Output: the operator's result. Invariant: the functions among
the arguments run unchanged, with autograd, on the fakes; they can read known values.

Torch differentiates these operators by tracing their functions with fakes of its own. On fakes of
torchfake, tracing would save nothing: the chosen branch or the loop runs, and autograd records the
operators that are called.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchfake._core import modes
from torchfake._operators.higher_order import flex_attention, structures
from torchfake._operators.higher_order.captured import captured_tensors, tensors_in
from torchfake._tensor.classes import FakeParameter
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import autograd, dispatch_keys
from torchfake._torch.compiler import higher_order
from torchfake.errors import UnsupportedOpError

REFUSED = {
    "triton_kernel_wrapper_mutation": "a Triton kernel reads and writes memory",
    "triton_kernel_wrapper_functional": "a Triton kernel reads and writes memory",
    "inline_asm_elementwise": "its assembly is compiled for a GPU",
    "aoti_call_delegate": "it calls a compiled library",
    "executorch_call_delegate": "it calls a compiled library",
    "run_and_save_rng_state": "it reads the state of a generator, which fakes do not move",
    "run_with_rng_state": "it sets the state of a generator, which fakes do not move",
    "graphsafe_run_with_rng_state": "it sets the state of a generator, which fakes do not move",
    "run_dtensor_rng_op": "it sets the state of a generator, which fakes do not move",
}
"""Operators that have no meaning for fakes, and why. They occur in compiled graphs alone."""

NUM_BEFORE_OPERANDS = {
    "invoke_subgraph": 2,
    "invoke_quant": 1,
    "invoke_quant_packed": 1,
    "foreach_map": 1,
}
"""Operators that call their first argument with their operands, and the number of arguments before
the operands."""


def run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `op` below autograd."""
    own = flex_attention.BELOW_AUTOGRAD.get(op)
    return _run_as_it_is(op, *args, **kwargs) if own is None else own(*args, **kwargs)


def _run_as_it_is(op: Any, *args: Any, **kwargs: Any) -> Any:
    name = op.name()
    before = NUM_BEFORE_OPERANDS.get(name)
    if before is not None:
        return args[0](*args[before:])
    kernel = None if name in REFUSED else higher_order.kernel_for_tensors(op)
    if kernel is None:
        reason = REFUSED.get(name, "torch has no kernel of it that runs on any device")
        raise UnsupportedOpError(
            f"torch.ops.higher_order.{name} cannot run on fakes: {reason}. Call the function it "
            "implements, or skip it for fakes with torchfake.is_fake(tensor)"
        )
    structured = _STRUCTURED.get(name)
    return kernel(*args, **kwargs) if structured is None else structured(kernel, *args, **kwargs)


_STRUCTURED: dict[str, Any] = {
    "scan": structures.scan,
    "while_loop": structures.while_loop,
    "cond": structures.branches,
    "map_impl": structures.map_rows,
}


_LOOPS = frozenset(
    {"scan", "associative_scan", "map_impl", "while_loop", "while_loop_stack_output"}
)
"""Operators whose gradients torch sums in an order that a record would not reproduce."""


def _above_autograd(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of `op` with its gradients."""
    used = _tensors_used(args, kwargs) if op.name() in _LOOPS and torch.is_grad_enabled() else []
    differentiated = [tensor for tensor in used if tensor.requires_grad]
    is_deferred = modes.is_recording() or any(map(is_deferred_fake, used))
    if not is_deferred or not differentiated:
        return _run_as_it_is(op, *args, **kwargs)
    with torch.no_grad():
        result = _run_as_it_is(op, *args, **kwargs)
    return pytree.tree_map_only(
        torch.Tensor, partial(_without_gradient, op, differentiated), result
    )


def _tensors_used(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((args, kwargs))
    return [tensor for leaf in leaves for tensor in captured_tensors(leaf)]


def _without_gradient(op: Any, inputs: list[torch.Tensor], result: torch.Tensor) -> Any:
    if not result.is_floating_point() and not result.is_complex():
        return result
    return _Unrecorded.apply(op.name(), result, *inputs)  # type: ignore[no-untyped-call]


class _Unrecorded(torch.autograd.Function):
    """A deferred result whose backward pass is refused: gradients would not equal eager's bits."""

    @staticmethod
    def forward(ctx: Any, name: str, result: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.name = name
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise UnsupportedOpError(
            f"gradients of torch.ops.higher_order.{ctx.name} cannot be recorded: torch adds them "
            "up in an order of its own. Call materialize_module first, or run it in fake_mode"
        )


def register_kernels() -> None:
    """Register a kernel for fakes for each higher-order operator that torch has defined so far."""
    for op in higher_order.dispatched_operators():
        above = flex_attention.ABOVE_AUTOGRAD.get(op, partial(_above_autograd, op))
        higher_order.add_kernel(op, dispatch_keys.WRAPPER_KEY.key, above)
        for cls in (FakeTensor, FakeParameter):
            higher_order.add_class(op, cls, partial(_run_for_class, op))
        higher_order.add_transforms(op, is_for_fakes, partial(_transformed, op))


def is_for_fakes(args: tuple[Any, ...]) -> bool:
    """Whether a call with `args` is for the kernels of fakes: a mode is on, or some are fakes."""
    return modes.current() is not None or any(map(_is_fake_inside, tensors_in(args)))


def _is_fake_inside(tensor: torch.Tensor) -> bool:
    return isinstance(autograd.without_levels(tensor), FakeTensor)


def _transformed(op: Any, transform: str, original: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of `op` in a transform of torch.func."""
    if transform == "Vmap" and op.name() == "cond":
        return structures.cond_in_vmap(autograd.is_mapped, *args[1:])
    return structures.refuse(op, transform) if original is None else original(*args, **kwargs)


def _run_for_class(op: Any, *args: Any, **kwargs: Any) -> Any:
    return run(op, args, kwargs)


register_kernels()
