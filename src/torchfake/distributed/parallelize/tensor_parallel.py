"""Tensor parallelism: which modules of a model are split and how, and the lines that split them.

Input: a module, the user's rules or None, and the size of the axis. Output: rules by module names
of this model, with ``*`` for numbers; lines of ``parallelize`` that apply them. Invariant: each
printed rule names an existing module or parameter; torch's own styles are used if they can express
all rules, otherwise transformers' own code.

A transformers model ships its rules (``base_model_tp_plan`` of its config, ``_tp_plan`` of its
classes), joined as ``model.tp_plan``. If torch has all of their styles, ``parallelize_module``
applies them; styles for experts, packed weights and latent attention exist in transformers only.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.writer import Code, expression, quoted
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
"""Torch's style by transformers' name of it."""

_SPLIT_HEADS = re.compile(r"\.(q_proj|q_b_proj|k_proj|v_proj|qkv_proj|query_key_value)$")
_SPLIT_KEYS = re.compile(r"\.(k_proj|v_proj|qkv_proj|query_key_value)$")
_ENGINE = "transformers.distributed.tensor_parallel"

_NAMED_STYLES = """def styles_of(model, rules):
    styles, parameters = {}, dict(model.named_parameters())
    for name, module in model.named_modules():
        rule = re.sub(r"(?<=\\.)\\d+(?=\\.|$)", "*", name)
        for key, _ in module.named_parameters(recurse=False):
            style = rules.get(f"{rule}.{key}", rules.get(rule))
            if style is not None and f"{name}.{key}" in parameters:
                styles[f"{name}.{key}"] = style
        if rule in rules:
            styles[name] = rules[rule]
    return styles
"""


_REPEATED_HEADS = """def repeat_heads(model, ranks):
    for part in model.modules():
        if getattr(part, "num_key_value_groups", 1) == 1:
            continue
        layers = [getattr(part, name, None) for name in ("k_proj", "v_proj")]
        for layer in filter(None, layers):  # an engine's rank has head rank // (ranks / heads)
            for key, rows in list(layer.named_parameters(recurse=False)):
                heads = rows.detach().unflatten(0, (-1, part.head_dim))
                times = max(1, ranks // len(heads))
                rows = heads.repeat_interleave(times, 0).flatten(0, 1)
                setattr(layer, key, torch.nn.Parameter(rows))
        part.num_key_value_groups //= times
"""


class SplitError(InputsError):
    """The tensors of a model cannot be split among the ranks of a mesh."""


class TensorRules(NamedTuple):
    """The tensor-parallel rules of one model."""

    styles: dict[str, str]  # module name with * for numbers -> transformers' name of a style
    is_torch: bool  # whether torch has all of the styles
    tied: tuple[tuple[str, str], ...]  # names of tied parameters, which have to be tied again


def tensor_rules(
    module: nn.Module,
    own: Mapping[str, str] | None,
    size: int,
    *,
    is_inference: bool = False,
) -> TensorRules:
    """The rules for this model, split over `size` ranks. For inference, several ranks have the same
    key-value head if there are too few, and heads of latent attention are split in any case.

    Raises:
        InputsError: if there are no rules, or a rule cannot be applied.
    """
    class_name = type(module).__name__
    shipped: Any = getattr(module, "tp_plan", None)
    if own is None and not (isinstance(shipped, dict) and shipped):
        raise SplitError(
            f"{class_name} ships no tensor-parallel plan: leave tp out of the mesh, or give "
            "Strategy(tensor_plan={'layers.*.up': 'colwise', 'layers.*.down': 'rowwise'})"
        )
    rules = dict(shipped) if own is None else dict(own)
    names = _names(module)
    if own is not None:
        _check_names(class_name, rules, names)
    rules = {name: style for name, style in rules.items() if name in names}
    if is_inference and own is None:
        rules |= _of_latent_attention(module, rules)
    _check_heads(module, rules, size, is_inference)
    is_torch = set(rules.values()) <= set(TORCH_STYLES) and not _names_parameters(module, rules)
    if not is_torch:
        _check_engine(class_name, rules)
    return TensorRules(rules, is_torch, _tied(module, rules))


def _of_latent_attention(module: nn.Module, rules: Mapping[str, str]) -> dict[str, str]:
    """Rules for the heads of latent attention (MLA), which plans such as DeepSeek-V3's leave whole;
    none if the plan has any. Engines split the projections from the latents, which all ranks have.
    """
    found: dict[str, str] = {}
    for name, part in module.named_modules():
        linear = {key for key, child in part.named_children() if isinstance(child, nn.Linear)}
        if {"kv_b_proj", "o_proj"} <= linear:
            path = without_numbers(name)
            queries = "q_b_proj" if "q_b_proj" in linear else "q_proj"
            found |= {f"{path}.{key}": "colwise" for key in (queries, "kv_b_proj")}
            found[f"{path}.o_proj"] = "rowwise"
    return {} if found.keys() & rules.keys() else found


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


def _check_heads(module: nn.Module, rules: Mapping[str, str], size: int, repeats: bool) -> None:
    """Check that ranks get whole attention heads."""
    if not _splits(_SPLIT_HEADS, rules):
        return
    text_config: Any = getattr(getattr(module, "config", None), "get_text_config", dict)()
    repeats = repeats and any(_grouped_heads(module))
    numbers = {"num_attention_heads": "heads"}
    if _splits(_SPLIT_KEYS, rules):
        numbers["num_key_value_heads"] = "key-value heads"
    found = {kind: getattr(text_config, key, None) for key, kind in numbers.items()}
    known = {kind: heads for kind, heads in found.items() if isinstance(heads, int)}
    for kind, heads in known.items():
        repeated = repeats and kind == "key-value heads"
        if not _is_split(heads, size, repeated):
            queries = range(1, known.get("heads", heads) + 1)
            fitting = (
                str(n) for n in queries
                if all(_is_split(k, n, repeats and kind != "heads") for kind, k in known.items())
            )  # fmt: skip
            raise SplitError(
                f"tp={size} does not divide the {heads} {kind} of {type(module).__name__}: give "
                f"a divisor, {', '.join(fitting)}"
            )


def _splits(names: re.Pattern[str], rules: Mapping[str, str]) -> bool:
    return any(names.search(name) for name, style in rules.items() if style == "colwise")


def _is_split(heads: int, size: int, repeats: bool) -> bool:
    return heads % size == 0 or (repeats and size % heads == 0)


def needs_heads(module: nn.Module, rules: Mapping[str, str], size: int) -> bool:
    """Whether a layer of attention has fewer key-value heads than there are ranks."""
    return _splits(_SPLIT_KEYS, rules) and any(number < size for number in _grouped_heads(module))


def _grouped_heads(module: nn.Module) -> Iterator[int]:
    """The key-value heads of each layer of attention that shares them among heads of queries."""
    for part in module.modules():
        keys, width = getattr(part, "k_proj", None), getattr(part, "head_dim", None)
        if getattr(part, "num_key_value_groups", 1) > 1 and keys is not None and width:
            yield keys.weight.shape[0] // width


def repeat_heads(code: Code, axes: MeshAxes) -> None:
    """Add the lines that repeat key-value heads until there is one for each rank."""
    code.imports.add("import torch")
    code.helpers.append(_REPEATED_HEADS)
    code.lines.append(f"repeat_heads(model, {axes.tensor_ranks})")


def _check_engine(class_name: str, rules: Mapping[str, str]) -> None:
    """Check that torch or the installed transformers has all styles."""
    others = sorted(set(rules.values()) - set(TORCH_STYLES))
    transformers = sys.modules.get("transformers")
    if transformers is None or importlib.util.find_spec(_ENGINE) is None:
        has = "" if transformers is None else f", and transformers {transformers.__version__} too"
        raise SplitError(
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
    """Whether the installed transformers takes rules by names with ``*`` for numbers, as 5.20 does,
    which ignores names of single modules; 5.23 takes names of single modules.
    """
    return hasattr(importlib.import_module(_ENGINE), "_get_parameter_plan")


def _tied(module: nn.Module, rules: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Pairs of names of one parameter that a rule replaces, under each name separately."""
    first: dict[int, str] = {}
    pairs = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        owners = {without_numbers(each).rpartition(".")[0] for each in (known, name)}
        if known != name and owners & set(rules):
            pairs.append((known, name))
    return tuple(pairs)


def split_tensors(code: Code, axes: MeshAxes, rules: TensorRules) -> None:
    """Add the lines that split the tensors of a model by its rules."""
    mesh = f'mesh["{axes.tensor}"]'
    if rules.is_torch:
        written = {name: TORCH_STYLES[style] for name, style in rules.styles.items()}
        _add_styles_imports(code, "".join(written.values()))
        code.lines += ["styles = {", *(f"    {quoted(k)}: {v}," for k, v in written.items()), "}"]
        code.lines.append(f"parallelize_module(model, {mesh}, styles)")
    else:
        split_by_transformers(code, axes, rules.styles)
    code.lines += retied(rules)


def split_by_transformers(code: Code, axes: MeshAxes, rules: Mapping[str, str]) -> None:
    """Add the lines that split tensors with transformers' own code."""
    engine = "transformers.distributed.tensor_parallel"
    code.imports.add(f"from {engine} import apply_tensor_parallelism")
    if takes_patterns():
        code.lines += _rules(rules)
        styles = "rules"
    else:
        styles = named_styles(code, rules)
    code.lines.append(f'apply_tensor_parallelism(model, mesh["{axes.tensor}"], {styles})')


def retied(rules: TensorRules) -> list[str]:
    """The lines that tie parameters again, which were replaced under each name separately."""
    pairs = ((expression(other), expression(first)) for first, other in rules.tied)
    return [f"{other} = {first}  # they are tied" for other, first in pairs]


def named_styles(code: Code, rules: Mapping[str, str]) -> str:
    """Add code that expands rules for names with ``*`` to the names of single modules; returns the
    Python expression of the result.
    """
    code.imports.add("import re")
    if _NAMED_STYLES not in code.helpers:
        code.helpers.append(_NAMED_STYLES)
    code.lines += _rules(rules)
    return "styles_of(model, rules)"


def _rules(rules: Mapping[str, str]) -> list[str]:
    return ["rules = {", *(f"    {quoted(k)}: {quoted(v)}," for k, v in rules.items()), "}"]


def _add_styles_imports(code: Code, written: str) -> None:
    names = [n for n in ("ColwiseParallel", "RowwiseParallel") if n in written]
    names.append("parallelize_module")
    code.imports.add(f"from torch.distributed.tensor.parallel import {', '.join(names)}")
    if "Replicate()" in written:
        code.imports.add("from torch.distributed.tensor import Replicate")
