"""Sparse tensors stay real in a mode: operators that make or take one run at once, on values.

Input: an operator that makes a sparse tensor, or has one among its arguments. Output: its result. A
sparse tensor is real and on the CPU, a strided one is a fake of known value, or deferred.
Invariant: no fake is sparse, and none is written; an operator on unknown values is refused.
"""

from __future__ import annotations

from typing import Any

import torch

from torchfake._core import devices
from torchfake._core.metadata import PLAIN, SPARSE_LAYOUTS
from torchfake._core.schemas import traits_of
from torchfake._operators.handlers.special_operators import lift
from torchfake._operators.operator_call import Args, Kwargs, mutated_arguments, tensors_in
from torchfake._recording.arguments import RunOnFakes
from torchfake._recording.record import record
from torchfake._tensor import known_values
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import dispatcher
from torchfake.errors import UnsupportedOpError

_MAKERS = (
    "aten::to_sparse", "aten::_to_sparse", "aten::sparse_coo", "aten::_sparse_coo",
    "aten::sparse_c", "aten::sparse_b", "aten::_sparse_c", "aten::_sparse_b",
    "aten::_validate_sparse",
)  # fmt: skip
"""Begins of the names of operators that make sparse tensors, or check what they are made of."""

_LIFT = torch.ops.aten.lift_fresh.default


def is_sparse(func: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether an operator makes a sparse tensor, or has one among its arguments."""
    if traits_of(func).packet.startswith(_MAKERS) or kwargs.get("layout") in SPARSE_LAYOUTS:
        return True
    return any(
        not isinstance(tensor, FakeTensor) and tensor.layout in SPARSE_LAYOUTS
        for tensor in tensors_in(args, kwargs)
    )


def run_sparse(
    func: Any, args: Args, kwargs: Kwargs, run: RunOnFakes, mode_mark: int = PLAIN
) -> Any:
    """Run such an operator on the values of its arguments.

    Raises:
        UnsupportedOpError: if a value is not known, or a fake would be written.
    """
    traits = traits_of(func)
    written = mutated_arguments(traits, args, kwargs)
    if any(isinstance(tensor, FakeTensor) for tensor in written):
        raise _refused(traits.name, "a fake cannot be written by it")
    named = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    fakes = [t for t in tensors_in(args, kwargs) if isinstance(t, FakeTensor)]
    name = traits.name
    with dispatcher.as_eager():
        result = func(
            *(_value_of(name, arg) for arg in args),
            **{key: _value_of(name, value) for key, value in named.items()},
        )
    if traits.is_view or written:
        return result
    return _as_fakes(result, run, max([mode_mark, *(fake._fake_meta.mark for fake in fakes)]))


def make_sparse(function: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """Call a function of torch that makes a sparse tensor, outside of modes, on known values.

    Raises:
        UnsupportedOpError: if a value is not known.
    """
    name, device = f"torch.{function.__name__}", kwargs.get("device")
    options = {**kwargs, **({} if device is None else {"device": devices.CPU})}
    values = [_value_of(name, [*args]), {k: _value_of(name, v) for k, v in options.items()}]
    with dispatcher.as_eager(), known_values.without_fake_mode():
        made: torch.Tensor = function(*values[0], **values[1])
    return made


def _value_of(func: str, arg: Any) -> Any:
    if isinstance(arg, FakeTensor):
        if arg._fake_storage.deferred is None and not known_values.is_known(arg):
            raise _refused(func, f"the value of {known_values.describe(arg)} is not known")
        return known_values.read_value(arg, "an operator on sparse tensors")
    if isinstance(arg, (list, tuple)):
        return [_value_of(func, item) for item in arg]
    return devices.CPU if isinstance(arg, torch.device) else arg


def _as_fakes(result: Any, run: RunOnFakes, mark: int) -> Any:
    """Strided results as fakes of their values; sparse ones, and numbers, as they are."""
    if isinstance(result, (list, tuple)):
        return type(result)(_as_fakes(item, run, mark) for item in result)
    if not isinstance(result, torch.Tensor) or result.layout in SPARSE_LAYOUTS:
        return result
    if mark == PLAIN:
        return lift(_LIFT, (result,), {})
    return record(_LIFT, traits_of(_LIFT), (result,), {}, run, mark)


def _refused(func: str, reason: str) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"{func}: {reason}. Fakes are strided: sparse tensors stay real, and are "
        "made of small known values alone"
    )
