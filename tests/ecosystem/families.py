"""What is asked of a library whose modules people build, train and materialize.

Input: a function that builds a module, and one that makes its inputs. Output: nothing, or an
AssertionError. Fakes have the shapes and strides of eager, forward and backward; deferred modules
become real with its bits, and leave no fake behind; `summary` and `estimate` run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.leftovers.scan import leftovers
from tests.oracle import bits, named_tensors
from tests.programs import assert_deferred, assert_fake
from torchfake import deferred_init, estimate, materialize_module, summary

Build = Callable[[], nn.Module]
Inputs = Callable[[], tuple[Any, ...]]


def trained(build: Build, inputs: Inputs, *, has_gradients: bool = True) -> Callable[[], Any]:
    """A program: build a module, run it, and go backward from the sum of all of its results."""

    def program() -> Any:
        module = build()
        results = tensors_of(module(*inputs()))
        if has_gradients:
            torch.stack([r.sum() for r in results if r.requires_grad]).sum().backward()
        return module, [result.detach() for result in results]

    return program


def tensors_of(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def assert_family(build: Build, inputs: Inputs, *, answer: Any = None, **options: Any) -> None:
    """All of it. `answer` is for fakes, whose values the module reads."""
    program = trained(build, inputs, **options)
    assert_fake(program, **({} if answer is None else {"answer": answer}))
    assert_deferred(program)
    assert_materialized(build)
    assert_inspected(build, inputs, answer)


def assert_materialized(build: Build) -> None:
    """A deferred module becomes that of eager, and no fake is left, reachable from it or not."""
    torch.manual_seed(0)
    expected = dict(named_tensors(build()))
    before = leftovers()
    torch.manual_seed(0)
    module = deferred_init(build)
    materialize_module(module)
    found = dict(named_tensors(module))
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert bits(found[name]) == bits(tensor), name
        assert found[name].stride() == tensor.stride(), name
    assert leftovers() == before


def assert_inspected(build: Build, inputs: Inputs, answer: Any = None) -> None:
    """`summary` counts what eager has; a step takes at least the parameters."""
    expected = list(build().parameters())
    num_bytes = sum(p.numel() * p.element_size() for p in expected)
    for module in (build(), deferred_init(build)):
        found = summary(module, *inputs(), answer=answer).tree.total
        assert found.num_parameters == sum(p.numel() for p in expected)
        optimizer = "sgd" if expected else None
        step = estimate(module, *inputs(), optimizer=optimizer, answer=answer)
        assert step.peak_bytes >= num_bytes
