"""Rules of tensor parallelism: which modules of a model are split, and how.

Input: a module, rules of one's own or none, and the size of the axis. Output: rules that name
modules of this model, with ``*`` for numbers, and whose code follows them. Invariant: a rule that
is printed names a module or a parameter that is there.

A model of transformers ships its rules (``base_model_tp_plan`` of its config, ``_tp_plan`` of its
classes), which it joins as ``model.tp_plan``. Where all of them are styles that torch has,
``parallelize_module`` follows them; those of experts, packed weights and latent attention are
transformers' own.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from torchfake.errors import InputsError, did_you_mean

TORCH_STYLES = {
    "colwise": "ColwiseParallel()",
    "rowwise": "RowwiseParallel()",
    "colwise_gather_output": "ColwiseParallel(output_layouts=Replicate())",
    "colwise_rep": "ColwiseParallel(output_layouts=Replicate())",
    "rowwise_split_input": "RowwiseParallel(input_layouts=Replicate())",
    "rowwise_rep": "RowwiseParallel(input_layouts=Replicate())",
    "embedding_rowwise": "RowwiseParallel(input_layouts=Replicate())",
}
"""By transformers' name of a style, torch's class of the same."""

_SPLIT_HEADS = re.compile(r"\.(q_proj|k_proj|v_proj|qkv_proj|query_key_value)$")
_ENGINE = "transformers.distributed.tensor_parallel"


class TensorRules(NamedTuple):
    """Rules that name modules of one model."""

    styles: dict[str, str]  # transformers' names of styles, by names with * for numbers
    is_torch: bool  # whether torch has all of the styles
    tied: tuple[tuple[str, str], ...]  # parameters that are one, and are to be tied again


def tensor_rules(module: nn.Module, own: Mapping[str, str] | None, size: int) -> TensorRules:
    """The rules for this model, split over `size` ranks.

    Raises:
        InputsError: if there are none, or one of them cannot be followed.
    """
    class_name = type(module).__name__
    shipped: Any = getattr(module, "tp_plan", None)
    if own is None and not (isinstance(shipped, dict) and shipped):
        raise InputsError(
            f"{class_name} ships no tensor-parallel plan: leave tp out of the mesh, or give "
            "Strategy(tensor_plan={'layers.*.up': 'colwise', 'layers.*.down': 'rowwise'})"
        )
    rules = dict(shipped) if own is None else dict(own)
    names = _names(module)
    if own is not None:
        _check_names(class_name, rules, names)
    rules = {name: style for name, style in rules.items() if name in names}
    _check_heads(module, rules, size)
    is_torch = set(rules.values()) <= set(TORCH_STYLES) and not _names_parameters(module, rules)
    if not is_torch:
        _check_engine(class_name, rules)
    return TensorRules(rules, is_torch, _tied(module, rules))


def without_numbers(name: str) -> str:
    """A full name with ``*`` for each number between dots.

    >>> without_numbers("layers.3.mlp.up"), without_numbers("layers.12")
    ('layers.*.mlp.up', 'layers.*')
    """
    return re.sub(r"(^|(?<=\.))\d+(?=\.|$)", "*", name)


def _names(module: nn.Module) -> set[str]:
    named = [name for name, _ in module.named_modules() if name]
    named += [name for name, _ in module.named_parameters(remove_duplicate=False)]
    return {*named, *map(without_numbers, named)}


def _names_parameters(module: nn.Module, rules: Mapping[str, str]) -> bool:
    named = (name for name, _ in module.named_parameters(remove_duplicate=False))
    return any(without_numbers(name) in rules for name in named)


def _check_names(class_name: str, rules: Mapping[str, str], names: set[str]) -> None:
    for name in rules:
        if name not in names:
            known = [known for known in names if "*" in known or not re.search(r"\.\d", known)]
            raise InputsError(
                f"tensor_plan names {name!r}, and {class_name} has no such module"
                f"{did_you_mean(name, known)}"
            )


def _check_heads(module: nn.Module, rules: Mapping[str, str], size: int) -> None:
    """Refuse to split a head of attention."""
    if not any(_SPLIT_HEADS.search(name) for name, style in rules.items() if style == "colwise"):
        return
    text_config: Any = getattr(getattr(module, "config", None), "get_text_config", dict)()
    for key, kind in (("num_attention_heads", "heads"), ("num_key_value_heads", "key-value heads")):
        heads = getattr(text_config, key, None)
        if isinstance(heads, int) and heads % size:
            sizes = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
            raise InputsError(
                f"tp={size} does not divide the {heads} {kind} of {type(module).__name__}: give "
                f"a divisor, {sizes}"
            )


def _check_engine(class_name: str, rules: Mapping[str, str]) -> None:
    """Refuse styles that neither torch nor the transformers that is installed has."""
    others = sorted(set(rules.values()) - set(TORCH_STYLES))
    transformers = sys.modules.get("transformers")
    if transformers is None or importlib.util.find_spec(_ENGINE) is None:
        has = "" if transformers is None else f", and transformers {transformers.__version__} too"
        raise InputsError(
            f"the rules of {class_name} have the styles {', '.join(others) or 'of parameters'}, "
            f"which torch lacks{has}: take transformers 5.23 or newer, or leave tp out of the mesh"
        )
    engine: Any = importlib.import_module(_ENGINE)
    for style in others:
        if style not in engine.ALL_PARALLEL_STYLES:
            known = [*engine.ALL_PARALLEL_STYLES]
            raise InputsError(
                f"{style!r} is not a tensor-parallel style"
                f"{did_you_mean(style, known) or ': give one of ' + ', '.join(sorted(known))}"
            )


def takes_patterns() -> bool:
    """Whether the transformers that is installed looks up rules by names with ``*`` for numbers, as
    5.20 does. It passes over other names, such as those of single modules, which 5.23 takes.
    """
    return hasattr(importlib.import_module(_ENGINE), "_get_parameter_plan")


def _tied(module: nn.Module, rules: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Names of parameters that are the same one, where a rule makes it anew under each name."""
    first: dict[int, str] = {}
    pairs = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        owners = {without_numbers(each).rpartition(".")[0] for each in (known, name)}
        if known != name and owners & set(rules):
            pairs.append((known, name))
    return tuple(pairs)
