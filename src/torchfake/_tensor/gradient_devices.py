"""Gradients on another device than their tensors: refused where C++ would compare carriers.

Input: gradients that a program passes to autograd: as ``.grad``, to ``backward``, from hooks and
from functions of its own. Output: the same gradients, or eager's error. Invariant: gradients that
eager accepts are accepted; one of no dims is moved, as eager moves it.

The engine takes the gradient of a tensor subclass as it comes (``validate_outputs`` in
torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchfake._core import devices
from torchfake._tensor.method_arguments import type_name
from torchfake._torch import autograd, backends


def _device_of(tensor: Any) -> torch.device | None:
    """The device of a fake, or of a real tensor; None of any other tensor."""
    record = getattr(tensor, "_fake_meta", None)
    if record is not None:
        return record.device  # type: ignore[no-any-return]
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_meta
    return tensor.device if is_plain else None


def set_grad(setter: Callable[[Any, Any], None], tensor: Any, value: Any) -> None:
    """Set ``tensor.grad`` by `setter`, whose error names carriers."""
    try:
        setter(tensor, value)
    except RuntimeError as error:
        own, other = _device_of(tensor), _device_of(value)
        if own is None or other is None or own == other or "on the same device" not in str(error):
            raise
        if own.type != other.type:
            text = f"with device type '{other.type}' to a tensor with device type '{own.type}'"
        else:
            text = (
                f"located on device with index '{other.index}' to a tensor located on device with "
                f"index '{own.index}'"
            )
        raise RuntimeError(
            f"attempting to assign a gradient {text}. Please ensure that the gradient and the "
            "tensor are on the same device"
        ) from None


def checked_hook(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`hook` of a tensor, refused if it returns a gradient of another type."""

    @functools.wraps(hook)
    def checked(grad: Any) -> Any:
        result = hook(grad)
        own, other = getattr(grad, "_fake_meta", None), getattr(result, "_fake_meta", None)
        if own is None or other is None:
            return result
        if (own.dtype, own.device.type) != (other.dtype, other.device.type):
            was, got = (type_name(m.dtype, m.device.type) for m in (own, other))
            raise RuntimeError(
                f"hook '{getattr(hook, '__name__', hook)}' has changed the type of value (was "
                f"{was} got {got})"
            )
        return result

    return checked


def _moved(grad: Any, expected: torch.device | None, prefix: str, index: int) -> Any:
    """A gradient on the device `expected`."""
    own = _device_of(grad)
    if own is None or expected is None or own == expected:
        return grad
    if grad.dim() == 0:
        return grad.to(expected)
    raise RuntimeError(
        f"{prefix}invalid gradient at index {index} - expected device {expected} but got {own}"
    )


def _making_grads(original: Any) -> Any:
    """``_make_grads``, which checks the gradients of ``backward`` and ``autograd.grad``."""

    @functools.wraps(original)
    def replacement(outputs: Any, grads: Any, is_grads_batched: bool) -> Any:
        made = original(outputs, grads, is_grads_batched)
        if is_grads_batched:
            return made
        expected = map(_expected_of, outputs)
        pairs = enumerate(zip(made, expected, strict=True))
        return tuple(_moved(grad, device, "", i) for i, (grad, device) in pairs)

    return replacement


def _expected_of(output: Any) -> torch.device | None:
    """The device of the gradient of an output, or of an edge of the graph; None of what is real."""
    if not isinstance(output, torch.Tensor):
        return _expected_at(output.node, output.output_nr)
    record = getattr(output, "_fake_meta", None)
    return None if record is None else record.device


def _expected_at(node: Any, index: int) -> torch.device | None:
    carrier = autograd.device_expected_at(node, index)
    device = devices.decode(carrier)
    return None if device == carrier else device


def _applying(original: Any) -> Any:
    """The backward pass of a ``torch.autograd.Function``."""

    @functools.wraps(original)
    def replacement(node: Any, *args: Any) -> Any:
        result = original(node, *args)
        results = result if isinstance(result, tuple) else (result,)
        edges = ((i, edge) for i, edge in enumerate(node.next_functions) if edge[0] is not None)
        moved = list(results)
        for k, (needed, grad) in enumerate(zip(node.needs_input_grad, results, strict=False)):
            i, edge = next(edges, (0, None)) if needed else (0, None)
            if edge is not None and grad is not None:
                prefix = f"Function {node.name()} returned an "
                moved[k] = _moved(grad, _expected_at(*edge), prefix, i)
        return tuple(moved) if isinstance(result, tuple) else moved[0]

    return replacement


def replacements() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """What is replaced as long as fakes live: owners, names, and functions from an original."""
    node = torch.autograd.function.BackwardCFunction
    names = [name for name in ("apply", "apply_boxed") if hasattr(node, name)]
    found = [(node, name, _applying) for name in names]
    return [(torch.autograd, backends.MAKE_GRADS, _making_grads), *found]
