"""One program in eager, in a fake mode and in a deferred one; what comes out is compared.

Input: a function without arguments that builds, draws, trains, and gives back modules, optimizers,
tensors and plain data, in any tree. Output: nothing, or an AssertionError that names the first leaf
that differs. Fakes have the metadata, ties, known values and generator state of eager; deferred
tensors become real with its bits.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.conftest import describe_tensor
from tests.oracle import bits, named_tensors
from torchfake import deferred_mode, errors, fake_mode, is_fake, materialize_module
from torchfake import materialize_tensor as materialize

Program = Callable[[], Any]


class Leaf(NamedTuple):
    """A tensor or a number that a program gave back, described before it is detached."""

    name: str
    described: Any
    value: Any


def assert_program(program: Program, *, deferred: bool = True, **options: Any) -> None:
    """`program` in ``fake_mode(**options)``, and deferred, is what it is in eager."""
    assert_fake(program, **options)
    if deferred:
        assert_deferred(program)


def assert_fake(program: Program, **options: Any) -> None:
    expected, state = run(program)
    with fake_mode(**options):
        found, after = run(program)
        assert [leaf[:2] for leaf in found] == [leaf[:2] for leaf in expected]
        tensors = [leaf for leaf in found if isinstance(leaf.value, torch.Tensor)]
        assert [leaf.name for leaf in tensors if not is_fake(leaf.value)] == []
        assert ties(found) == ties(expected)
        assert torch.equal(after, state), "the generator is not where eager left it"
        if "answer" not in options:
            for leaf, other in zip(found, expected, strict=True):
                assert_known_values(leaf, other)


def assert_known_values(leaf: Leaf, expected: Leaf) -> None:
    """What can be read of a fake is what eager has."""
    if not isinstance(leaf.value, torch.Tensor):
        return
    try:
        found = leaf.value.detach().tolist()
    except errors.UnknownValueError:
        return
    with torch.utils._python_dispatch._disable_current_modes():
        assert repr(found) == repr(expected.value.detach().tolist()), leaf.name


def assert_deferred(program: Program) -> None:
    expected, state = run(program)
    modules: list[nn.Module] = []
    with deferred_mode():
        found, _ = run(program, modules)
    assert torch.equal(torch.get_rng_state(), state), "the generator is not where eager left it"
    assert [leaf[:2] for leaf in found] == [leaf[:2] for leaf in expected]
    gc.collect()  # the graph of a forward pass holds parameters
    for module in modules:
        materialize_module(module)
    for leaf, other in zip(found, expected, strict=True):
        if isinstance(leaf.value, torch.Tensor):
            real = materialize(leaf.value) if is_fake(leaf.value) else leaf.value
            assert bits(real) == bits(other.value), leaf.name
    assert ties(found) == ties(expected)
    assert torch.equal(torch.get_rng_state(), state), "the generator was moved"


def run(program: Program, modules: list[nn.Module] | None = None) -> tuple[list[Leaf], Any]:
    """The leaves of what `program` gives, and where it leaves the generator."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    result = program()
    state = torch.get_rng_state()
    if modules is not None:
        leaves = pytree.tree_leaves(result)
        modules += [leaf for leaf in leaves if isinstance(leaf, nn.Module)]
    return list(leaves_of(result)), state


def leaves_of(result: Any, name: str = "") -> Iterator[Leaf]:
    if isinstance(result, torch.Tensor):
        described = describe_tensor(result)
        value = result if result.grad_fn is None else result.detach()
        yield Leaf(name, described, value)
    elif isinstance(result, nn.Module):
        for key, tensor in named_tensors(result):
            yield from leaves_of(tensor, f"{name}.{key}")
            if tensor.grad is not None:
                yield from leaves_of(tensor.grad, f"{name}.{key}.grad")
    elif isinstance(result, torch.optim.Optimizer):
        yield from leaves_of(result.state_dict(), f"{name}.state")
    elif isinstance(result, dict):
        for key, item in result.items():
            yield from leaves_of(item, f"{name}.{key}")
    elif isinstance(result, (list, tuple)) and not isinstance(result, torch.Size):
        for index, item in enumerate(result):
            yield from leaves_of(item, f"{name}.{index}")
    else:
        yield Leaf(name, result, None)


def ties(leaves: list[Leaf]) -> list[int]:
    """Of each tensor, which is the first that shares its storage."""
    first: dict[int, int] = {}
    tensors = [leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]  # alive: no address comes twice
    return [first.setdefault(storage._cdata, i) for i, storage in enumerate(storages)]
