"""What a call gives, forward and backward, and how two outcomes differ.

Input: a call, on real tensors or on fakes. Output: the metadata of its results, of its inputs'
gradients and of its parameters' gradients, what aliases what, or the error. Invariant: strides are
compared as they are.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import torchfake
from tests.strides.calls import Case

Outcome = list[Any] | Exception


def eager_outcome(case: Case) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return _outcome(case.make, *case.arguments)


def fake_outcome(case: Case) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torchfake.fake_mode():
            torch.manual_seed(0)
            return _outcome(case.make, *fakes_of(case.arguments))


def fakes_of(arguments: Any) -> Any:
    """The arguments with a fake in place of each tensor."""
    made: dict[int, Any] = {}

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in made:
            made[id(value)] = torchfake.fake_like(value)
        return made[id(value)]

    return tree_map(fake, arguments)


def _outcome(make: Callable[[], Any], args: Any, kwargs: Any) -> Outcome:
    try:
        function = make()
        results = function(*args, **kwargs)
        flat = list(tree_flatten(results)[0])
        inputs = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        found = [("result", i, describe(t, inputs)) for i, t in enumerate(flat)]
        found += _gradients(function, flat, inputs)
        return found
    except Exception as error:
        return error


def _gradients(function: Any, results: list[Any], inputs: list[Tensor]) -> list[Any]:
    """The gradients for gradients that lie as the results do, and for the expanded one of a sum;
    then those that the parameters accumulate.
    """
    outputs = [t for t in results if isinstance(t, Tensor) and t.requires_grad]
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    wanted = [t for t in dict.fromkeys(inputs) if t.requires_grad and t.is_leaf]
    wanted += [p for p in parameters if p.requires_grad]
    if not outputs or not wanted:
        return []
    found = []
    for kind, seeds in (
        ("gradient", [torch.ones_like(t) for t in outputs]),
        ("gradient of sum", [torch.ones((), dtype=t.dtype).expand(t.shape) for t in outputs]),
    ):
        grads = torch.autograd.grad(outputs, wanted, seeds, retain_graph=True, allow_unused=True)
        found += [(kind, i, describe(g, seeds)) for i, g in enumerate(grads)]
    if parameters:
        torch.autograd.backward(outputs, seeds)
        found += [("parameter.grad", i, describe(p.grad, [])) for i, p in enumerate(parameters)]
    return found


def describe(value: Any, inputs: list[Tensor]) -> Any:
    """What must be equal: size, strides, offset, dtype, laziness, whether it is a view, and which
    of the inputs it is or shares memory with; of what is no tensor the type.
    """
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.layout != torch.strided:
        return str(value.layout)
    place = tuple(value.shape), value.stride(), int(value.storage_offset())
    lazy = ("conj" * value.is_conj(), "neg" * value.is_neg())
    alias = [i for i, t in enumerate(inputs) if _storage(t) == _storage(value)]
    return (*place, str(value.dtype), *lazy, "view" * (value._base is not None), alias,
            [i for i, t in enumerate(inputs) if t is value], value.requires_grad)  # fmt: skip


def _storage(tensor: Tensor) -> Any:
    if tensor.layout != torch.strided:
        return id(tensor)
    own = getattr(tensor, "_fake_storage", None)
    return id(own) if own is not None else tensor.untyped_storage()._cdata


class AnyMode(TorchDispatchMode):
    """Changes nothing. While one is on, C++ takes every tensor for one of a subclass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def difference(case: Case, fake: Outcome | None = None) -> tuple[str, str] | None:
    """How a call differs from eager: the kind of difference, and what it is. The kind is
    ``subclass`` if eager gives the same as soon as any mode is on.
    """
    fake = fake_outcome(case) if fake is None else fake
    found = compared(eager_outcome(case), fake)
    if found is None or found[0] not in ("result", "gradient", "gradient of sum"):
        return found
    with AnyMode():
        same = compared(eager_outcome(case), fake) is None
    return ("subclass", found[1]) if same else found


IS_OF_VALUES = re.compile(
    r"out of (DATA )?(bounds|range)(?! for storage)|positive-definite|singular|sum to zero|"
    r"pivots given|ones in mask|Expected in range|must be between",
    re.IGNORECASE,
)
"""What eager says of values, which fakes do not know."""


def compared(real: Outcome, fake: Outcome) -> tuple[str, str] | None:
    if isinstance(real, Exception) and isinstance(fake, Exception):
        return None
    if isinstance(fake, Exception):
        kind = "refused" if isinstance(fake, torchfake.errors.TorchFakeError) else "error"
        return kind, f"{type(fake).__name__}: {str(fake).splitlines()[0][:200]}"
    if isinstance(real, Exception):
        kind = "values" if IS_OF_VALUES.search(str(real)) else "accepted"
        return kind, f"{type(real).__name__}: {(str(real).splitlines() or [''])[0][:200]}"
    if len(fake) != len(real):
        return "number", f"{len(fake)} is not {len(real)}"
    for (kind, i, found), (_, _, expected) in zip(fake, real, strict=True):
        if found != expected:
            return kind, f"{i}: {found} is not {expected}"
    return None
