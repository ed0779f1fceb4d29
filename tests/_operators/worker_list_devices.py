"""What lists of tensors on the CPU and on CUDA torch takes together, against fake CUDA.

    python -m tests._operators.worker_list_devices

Every overload of the ``_foreach_`` and ``_fused_`` operators, and every optimizer, whose state was
made before its parameters were moved. ``tests/cuda_stand_in`` stands in for CUDA; torch has to be
built for it.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from tests.cuda_stand_in.worker_main import compare_with_cuda

PLACES = ("cpu", "cuda", "number")
"""A vector on the CPU, one on CUDA, and a tensor of no dims on the CPU."""

OPTIMIZERS = [
    name
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer)
    if name not in ("Optimizer", "SparseAdam", "LBFGS")
]
OPTIONS: list[dict[str, bool]] = [
    {},
    *(
        {name: flag}
        for name, flag in (
            ("foreach", True),
            ("foreach", False),
            ("fused", True),
            ("capturable", True),
        )
    ),
]


def tensor(place: str, *, is_number: bool = False) -> torch.Tensor:
    """A tensor of floats at one of :data:`PLACES`."""
    shape = [] if is_number or place == "number" else [3]
    return torch.ones(shape, device="cuda" if place == "cuda" else "cpu")


def overloads() -> Iterator[Any]:
    """The operators on lists, without those that write to ``out``."""
    for name in sorted({schema.name for schema in torch._C._jit_get_all_schemas()}):
        is_step = name.startswith(("aten::_fused_ad", "aten::_fused_sgd")) and name.endswith("_")
        if is_step or name.startswith("aten::_foreach_"):
            packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
            functions = (getattr(packet, overload) for overload in packet.overloads())
            yield from (f for f in functions if not any(a.is_out for a in f._schema.arguments))


def arguments(func: Any, places: dict[str, tuple[str, str]]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `func`, its tensors at `places`: two of each list, or one."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in func._schema.arguments:
        value = _value(argument, places)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


_OTHERS = {"number": 1.0, "Scalar": 1.0, "List[number]": [1.0, 1.0], "float": 0.5, "bool": False}


def _value(argument: Any, places: dict[str, tuple[str, str]]) -> Any:
    kind = str(argument.type)
    if "List[Tensor]" in kind:
        if argument.name == "max_exp_avg_sqs":
            return []
        is_steps = argument.name == "state_steps"
        return [tensor(place, is_number=is_steps) for place in places[argument.name]]
    if "Tensor" in kind:
        if kind.startswith("Optional") and argument.name not in places:
            return None
        if argument.name == "scalars":
            return torch.ones(2, device=places[argument.name][0].replace("number", "cpu"))
        return tensor(places[argument.name][0], is_number=True)
    if argument.has_default_value():
        return argument.default_value
    return _OTHERS[kind]


def tensor_arguments(func: Any) -> list[str]:
    kinds = {a.name: str(a.type) for a in func._schema.arguments}
    required = [n for n, k in kinds.items() if "Tensor" in k and not k.startswith("Optional")]
    return [name for name in required if name != "max_exp_avg_sqs"]


def placements(func: Any) -> Iterator[dict[str, tuple[str, str]]]:
    """Each place of the first list with each of every other; all others where the first is."""
    names = tensor_arguments(func)
    pairs = list(itertools.product(PLACES, repeat=2))
    for first in pairs:
        yield dict.fromkeys(names, first)
        for name, other in itertools.product(names[1:], pairs):
            if other != first:
                yield {**dict.fromkeys(names, first), name: other}


def outcome(func: Any, places: dict[str, tuple[str, str]]) -> Any:
    """The devices of the results, or ``refused``."""
    args, kwargs = arguments(func, places)
    try:
        results = func(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError) as error:
        return "refused", str(error)
    found = results if isinstance(results, (list, tuple)) else []
    return [str(result.device) for result in found if isinstance(result, torch.Tensor)], ""


def step_after_move(name: str, options: dict[str, bool]) -> str:
    """What an optimizer says whose parameters have been moved to CUDA since its last step."""
    layer = torch.nn.Linear(3, 4, bias=name != "Muon")
    extra = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    try:
        optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1, **extra, **options)
    except TypeError:
        return "no such option"
    layer.weight.sum().backward()
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    try:
        optimizer.step()
    except (RuntimeError, AssertionError):
        return "refused on the CPU"
    layer.to("cuda")
    try:
        optimizer.step()
    except (RuntimeError, AssertionError):
        return "refused"
    return "accepted"


def _all() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for func in overloads():
        for places in placements(func):
            found[f"{func} {places}"] = outcome(func, places)
    for name, options in itertools.product(OPTIMIZERS, OPTIONS):
        found[f"{name} {options}"] = [step_after_move(name, options), ""]
    return found


if __name__ == "__main__":
    compare_with_cuda("tests._operators.worker_list_devices", _all, lambda found: found[0])
