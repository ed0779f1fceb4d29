"""Python functions of torch: rebuilt, unwrapped, recognised by their code."""

from __future__ import annotations

import inspect
import sys
from typing import Any, get_args

import torch
from torch import nn

from torchfake import fake_mode
from torchfake._torch.compiler import python_functions


def test_without_override_check() -> None:
    function = torch.nn.functional.layer_norm
    blind = python_functions.without_override_check(function)
    assert blind is not function
    assert blind.__defaults__ == function.__defaults__
    assert not blind.__globals__["has_torch_function_variadic"](1)
    x = torch.arange(4.0)
    assert torch.equal(blind(x, (4,)), function(x, (4,)))


def test_unwrap_and_rebuild_functions() -> None:
    """Decorators are removed; a copy has other globals, and the function keeps its own."""
    decorated = torch.no_grad()(_adds_one)
    assert python_functions.unwrap(decorated) is _adds_one
    assert "ONE" in python_functions.global_names_in(_adds_one.__code__)
    assert python_functions.with_globals(_adds_one, {"ONE": 2})(3) == 5
    assert _adds_one(3) == 4


def test_assumed_values() -> None:
    answers = [code for code, _ in python_functions.assumed_values().values()]
    assert torch.distributions.Distribution.__init__.__code__ in answers
    assert torch.nn.functional.gaussian_nll_loss.__code__ in answers
    assert torch.optim.LBFGS.step.__wrapped__.__code__ in answers or len(answers) > 8
    with fake_mode():  # the rejection sampler of torch 2.13, and what it was before
        assert torch.nn.init.trunc_normal_(torch.empty(3, 3)).shape == (3, 3)


def test_compound_initializers() -> None:
    """Their first argument is the tensor that they write; torch 2.13 made one a rejection
    sampler.
    """
    functions = python_functions.compound_initializers().values()
    names = {function.__name__ for function in functions}
    assert {"orthogonal_", "sparse_"} <= names
    for function in functions:
        assert next(iter(inspect.signature(function).parameters)) == "tensor"
        assert function.__code__.co_varnames[0] == "tensor"
    draws_again = "any" in torch.nn.init._no_grad_trunc_normal_.__code__.co_names
    assert ("_no_grad_trunc_normal_" in names) == draws_again


ONE = 1


def _adds_one(number: int) -> int:
    return number + ONE


def test_to_empty_asks_for_memory_in_code_of_its_own() -> None:
    seen: list[int] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.empty_like:
                frame = sys._getframe(1)
                seen.append(id(frame.f_code))
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.nn.Linear(2, 2, bias=False).to_empty(device="cpu")
    assert seen
    assert set(seen) == set(python_functions.code_of_to_empty())


def test_lines_that_ask_for_overrides() -> None:
    for layer in (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention):
        code = inspect.unwrap(layer.forward).__code__
        assert python_functions.asks_for_overrides(code)
        lines, start = inspect.getsourcelines(code)
        asking = {start + i for i, line in enumerate(lines) if "has_torch_function(" in line}
        assert python_functions.lines_that_ask(code) == asking
    assert not python_functions.asks_for_overrides(torch.nn.functional.relu.__code__)


def test_a_replacement_has_an_owner_a_name_and_what_makes_it() -> None:
    assert len(get_args(python_functions.Replacement)) == 3
