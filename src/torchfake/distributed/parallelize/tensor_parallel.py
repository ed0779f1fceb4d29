"""The lines that split tensors among the ranks of an axis.

Input: the rules of a model. Output: lines of ``parallelize``. Invariant: torch's own styles where
they do what the rules say, else transformers' own code.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.tensor_rules import (
    TORCH_STYLES,
    TensorRules,
    takes_patterns,
)
from torchfake.distributed.parallelize.writer import Code, expression, quoted

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


def split_tensors(code: Code, axes: MeshAxes, rules: TensorRules) -> None:
    """Split the tensors of a model by its rules."""
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
    """Split tensors by rules that are transformers' own."""
    engine = "transformers.distributed.tensor_parallel"
    code.imports.add(f"from {engine} import apply_tensor_parallelism")
    if takes_patterns():
        code.lines += _rules(rules)
        styles = "rules"
    else:
        styles = named_styles(code, rules)
    code.lines.append(f'apply_tensor_parallelism(model, mesh["{axes.tensor}"], {styles})')


def retied(rules: TensorRules) -> list[str]:
    """The lines that tie parameters again, each of which was made anew under each name."""
    pairs = ((expression(other), expression(first)) for first, other in rules.tied)
    return [f"{other} = {first}  # they are tied" for other, first in pairs]


def named_styles(code: Code, rules: Mapping[str, str]) -> str:
    """The expression of rules of names with ``*`` as the styles of single modules, as transformers'
    code takes them.
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
