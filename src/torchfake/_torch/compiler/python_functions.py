"""Python functions of torch: rebuilt with other globals, unwrapped, and recognised by their code.

Input: Python functions and code objects. Output: changed copies of functions; tables of torch's
functions by the identity of their code. Invariant: torch's own functions are not changed.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.distributions

from torchfake._torch.private_facts import PrivateFact

Replacement = tuple[Any, str, Callable[[Any], Any]]
"""An owner, the name of an attribute, and a function from the original to its replacement."""


def without_override_check(function: types.FunctionType) -> types.FunctionType:
    """A copy of a Python function that does not look for overrides on its own arguments.

    ``torch.nn.functional`` functions begin with ``if has_torch_function(...)``. A handler that
    calls one again must get past that check, and still see the calls made inside.
    """
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    known = function.__globals__
    return with_globals(function, {**known, **{n: _no_override for n in names if n in known}})


def with_globals(function: types.FunctionType, names: dict[str, Any]) -> types.FunctionType:
    """A copy of `function` whose globals are `names`."""
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def asks_for_overrides(code: types.CodeType) -> bool:
    """Whether `code` asks for overrides of torch's functions only to choose its own path, as the
    attention and encoder layers of ``torch.nn`` do. Other code hands the call to the override.
    """
    return ATTENTION.holds() and _asks_for_overrides(code)


def _asks_for_overrides(code: types.CodeType) -> bool:
    return "has_torch_function" in code.co_names and "handle_torch_function" not in code.co_names


ATTENTION = PrivateFact(
    "the layers of attention ask for overrides in their own code",
    used_in="_torch/compiler/python_functions",
    without="Fakes take the way of overridden tensors there, whose values have other last bits",
    is_shortcut=False,
    check=lambda: all(
        _asks_for_overrides(layer.forward.__code__)
        for layer in (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)
    ),
)


@lru_cache(maxsize=64)
def lines_that_ask(code: types.CodeType) -> frozenset[int]:
    """The lines in which `code` calls ``has_torch_function``."""
    asks = [i.offset for i in dis.get_instructions(code) if i.argval == "has_torch_function"]
    lines = [n for start, end, n in code.co_lines() if any(start <= at < end for at in asks)]
    return frozenset(n for n in lines if n is not None)


def _no_override(*_args: object) -> bool:
    return False


@lru_cache(maxsize=1)
def assumed_values() -> dict[int, tuple[types.CodeType, float]]:
    """Functions of torch that branch on the value of a tensor: by the identity of their code, the
    code, and the value that is assumed where the tensor's value is unknown.

    Rejection samplers branch on whether a draw has to be repeated (``trunc_normal_`` became one in
    torch 2.13); argument checks on whether a value is out of range, or all are in it; the gradient
    scaler on how many gradients overflowed; optimizers on norms and losses, to choose the length
    of a step, and on whether they have converged. The code is kept alive with its identity, which
    is the key because the hash of a code object reads all of its instructions.
    """
    return _find_assumed_values() if ASSUMED_VALUES.holds() else {}


def _find_assumed_values() -> dict[int, tuple[types.CodeType, float]]:
    functional, distribution = torch.nn.functional, torch.distributions.Distribution
    parametrizations, lbfgs = torch.nn.utils.parametrizations, unwrap(torch.optim.LBFGS.step)
    adafactor, line_search = torch.optim._adafactor, lbfgs.__globals__
    values: dict[Any, Any] = {
        unwrap(getattr(torch.nn.init, "_no_grad_trunc_normal_", None)): False,
        functional.gaussian_nll_loss: False,
        distribution.__init__: True,
        distribution._validate_sample: True,
        unwrap(torch.distributions.von_mises._rejection_sample): True,
        torch.amp.GradScaler._maybe_opt_step: False,
        parametrizations._is_orthogonal: False,
        torch.nn.modules.transformer._detect_is_causal_mask: False,
        adafactor._single_tensor_adafactor: 1.0,
        adafactor._multi_tensor_adafactor: 1.0,
        lbfgs: False,
        line_search["_strong_wolfe"]: False,
        line_search["_cubic_interpolate"]: False,
    }
    codes = [(function.__code__, value) for function, value in values.items() if function]
    return {id(code): (code, value) for code, value in codes}


ASSUMED_VALUES = PrivateFact(
    "the functions that branch on values have their names",
    used_in="_torch/compiler/python_functions",
    without="Such a function raises UnknownValueError for fakes, or is answered by answer=",
    is_shortcut=False,
    check=lambda: bool(_find_assumed_values()),
)


def unwrap(function: Any) -> Any:
    """The function inside torch's decorators.

    ``inspect.unwrap`` is no substitute: it looks for ``__wrapped__`` on operators too.
    """
    while isinstance(function, types.FunctionType) and "__wrapped__" in vars(function):
        function = vars(function)["__wrapped__"]
    return function


def global_names_in(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in `code` and in functions defined inside it."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*(global_names_in(c) for c in inner))


@lru_cache(maxsize=1)
def compound_initializers() -> dict[int, Callable[..., Any]]:
    """The functions of ``torch.nn.init`` that read values, or compute at length on what they draw,
    by the identity of their code. A call of one is recorded as one operation.

    Their first parameter is named ``tensor``, and they write all of it.
    """
    return _find_compound_initializers() if COMPOUND_INITIALIZERS.holds() else {}


def _find_compound_initializers() -> dict[int, Callable[..., Any]]:
    init = torch.nn.init
    functions: list[Any] = [init.orthogonal_, init.sparse_]
    for name in ("_no_grad_trunc_normal_", "trunc_normal_"):
        function = unwrap(getattr(init, name, None))
        if function is not None and "any" in function.__code__.co_names:  # a rejection sampler
            functions.append(function)
    return {id(function.__code__): function for function in functions}


def _take_a_tensor_and_a_generator() -> bool:
    parameters = [
        inspect.signature(function).parameters
        for function in _find_compound_initializers().values()
    ]
    return all(next(iter(each)) == "tensor" and "generator" in each for each in parameters)


COMPOUND_INITIALIZERS = PrivateFact(
    "initializers that read values have parameters named tensor and generator",
    used_in="_recording/initializers",
    without="Each operation in such an initializer is recorded, and run if its values are read",
    is_shortcut=True,
    check=_take_a_tensor_and_a_generator,
)


@lru_cache(maxsize=1)
def code_of_to_empty() -> frozenset[int]:
    """Identities of the code in which ``nn.Module.to_empty`` calls ``empty_like``."""
    constants = torch.nn.Module.to_empty.__code__.co_consts if TO_EMPTY.holds() else ()
    return frozenset(id(code) for code in constants if isinstance(code, types.CodeType))


TO_EMPTY = PrivateFact(
    "nn.Module.to_empty calls torch.empty_like in a function of its own",
    used_in="_recording/initializers",
    without="What a deferred module gets from to_empty is not initialized, as in eager mode",
    is_shortcut=False,
    check=lambda: "empty_like" in global_names_in(torch.nn.Module.to_empty.__code__),
)
