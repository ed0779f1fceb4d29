"""The lines that distribute experts over ranks, to which tokens are sent (expert parallelism).

Input: a model and the axes. Output: lines of ``parallelize``. Invariant: transformers' own code
sends the tokens, with two all-to-alls per layer; a model without experts is refused.

Each rank of ``ep``, and of ``tp`` if the mesh has this axis, gets whole experts. Experts are
sharded along the remaining data-parallel axes, all other parameters along all of these axes.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections import Counter
from typing import Any, NamedTuple

from torch import nn

from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.tensor_parallel import (
    TORCH_STYLES,
    TensorRules,
    named_styles,
    without_numbers,
)
from torchfake.distributed.parallelize.writer import Code, data_mesh
from torchfake.errors import InputsError

_ENGINE = "transformers.distributed.expert_parallel"
_DISPATCH = "ep_dispatch_experts"


class ExpertModules(NamedTuple):
    """The experts of one model."""

    rules: dict[str, str]  # module name with * for numbers -> transformers' name of a style
    classes: list[str]  # class names of the modules that hold the experts of a layer


def expert_modules(module: nn.Module, axes: MeshAxes) -> ExpertModules:
    """The experts of a model, and the rules that the model ships for them.

    Raises:
        InputsError: if the model has no rules for experts, or the experts do not divide evenly.
    """
    name, axis = type(module).__name__, axes.experts
    shipped: Any = getattr(module, "ep_plan", None)
    names = {without_numbers(path) for path, _ in module.named_modules()}
    names |= {without_numbers(path) for path, _ in module.named_parameters()}
    rules = {key: style for key, style in dict(shipped or {}).items() if key in names}
    if _DISPATCH not in rules.values():
        raise InputsError(
            f"{name} ships no expert-parallel plan (base_model_ep_plan): leave {axis} out of the "
            "mesh"
        )
    _check_engine(axis)
    held = [
        part
        for path, part in module.named_modules()
        if rules.get(without_numbers(path)) == _DISPATCH
    ]
    for part in held:
        _check_number(int(getattr(part, "num_experts", 0)), name, axes)
    return ExpertModules(rules, sorted({type(part).__name__ for part in held}))


def _check_number(number: int, name: str, axes: MeshAxes) -> None:
    if number % (axes.expert_ranks * axes.tensor_ranks):
        along = f"{axes.experts}={axes.expert_ranks}"
        along += f" x {axes.tensor}={axes.tensor_ranks}" if axes.tensor_ranks > 1 else ""
        sizes = ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
        raise InputsError(
            f"{along} does not divide the {number} experts of {name}: give a divisor, {sizes}"
        )


def without_experts(rules: TensorRules, experts: ExpertModules, module: nn.Module) -> TensorRules:
    """The tensor-parallel rules, without those for modules that the experts' rules cover. torch
    warns of a rule that some layers have no module for, such as one for dense layers among experts.
    """
    split = tuple(experts.rules)
    left = {
        name: style
        for name, style in rules.styles.items()
        if not any(name == other or name.startswith(f"{other}.") for other in split)
    }
    found = Counter(without_numbers(path) for path, _ in module.named_modules())
    is_everywhere = all(
        found[name] == found[name[: name.rfind("*") + 1]] for name in left if "*" in name
    )
    is_torch = set(left.values()) <= set(TORCH_STYLES) and is_everywhere
    return rules._replace(styles=left, is_torch=is_torch)


def split_experts(code: Code, axes: MeshAxes, experts: ExpertModules) -> None:
    """Add the lines that distribute the experts over the ranks."""
    mesh = f'mesh["{axes.experts}"]'
    if axes.tensor_ranks > 1:
        names = [name for name in axes.sizes if name in (axes.experts, axes.tensor)]
        mesh = f'mesh["{names[0]}", "{names[1]}"]._flatten("{"_".join(names)}")'
    code.imports.add(f"from {_ENGINE} import apply_expert_parallelism")
    styles = named_styles(code, experts.rules)
    code.lines.append(f'apply_expert_parallelism(model, {mesh}, mesh["{axes.tensor}"], {styles})')


def shard_experts(code: Code, axes: MeshAxes, experts: ExpertModules, options: list[str]) -> None:
    """Add the lines that shard experts along the data-parallel axes that do not distribute them.
    Gradients are divided by the number of all data ranks, whose tokens each expert gets.
    """
    classes = ", ".join(f'"{name}"' for name in experts.classes)
    chosen = f"== {classes}" if len(experts.classes) == 1 else f"in ({classes})"
    others = [axes.shard, *([axes.context] if axes.context_ranks > 1 else [])]
    mesh = data_mesh(code, axes, [name for name in axes.sizes if name in others])
    given = ", ".join([f"mesh={mesh}", *options])
    num_ranks = axes.data_ranks * axes.context_ranks
    code.lines += [
        f"experts = [part for part in model.modules() if type(part).__name__ {chosen}]",
        "for part in experts:",
        f"    fully_shard(part, {given})",
        f"    part.set_gradient_divide_factor({float(num_ranks)})",
    ]
    if math.prod(axes.sizes[name] for name in others) > 1:
        code.lines.append("    part.set_force_sum_reduction_for_comms(True)")


def _check_engine(axis: str) -> None:
    transformers = sys.modules.get("transformers")
    if transformers is None or importlib.util.find_spec(_ENGINE) is None:
        version = getattr(transformers, "__version__", "that is installed")
        raise InputsError(
            f"transformers {version} has no {_ENGINE}: leave {axis} out of the mesh, or take "
            "transformers 5.23 or newer"
        )
