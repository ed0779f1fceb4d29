"""The lines that split tensors, and between them the sequence (sequence parallelism).

Input: a model, its blocks and its tensor-parallel rules. Output: lines of ``parallelize``.
Invariant: torch's own styles gather, scatter or normalise the activations of each part of a block;
inside a part that gets whole sequences, transformers' rules may split tensors.

Between attention and MLP each rank has a part of the sequence, as a DTensor. Norms and residuals
run on this part; the sequence is gathered before split tensors, and their sum is scattered. This is
the layout of torchtitan's plans for Llama (Korthikanti et al. 2022, arXiv:2205.05198).
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any, NamedTuple

from torch import nn

from torchfake.distributed.parallelize.blocks import Blocks
from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.tensor_parallel import (
    TensorRules,
    retied,
    split_by_transformers,
    without_numbers,
)
from torchfake.distributed.parallelize.writer import Code, quoted
from torchfake.errors import InputsError

_SCATTERED = "output_layouts=Shard(1), use_local_output=False"
_INSIDE = {  # styles of layers inside a part whose inputs are whole sequences
    "colwise": "ColwiseParallel()",
    "colwise_gather_output": "ColwiseParallel(output_layouts=Replicate())",
    "colwise_rep": "ColwiseParallel(output_layouts=Replicate())",
    "rowwise": f"RowwiseParallel({_SCATTERED})",
    "rowwise_split_input": f"RowwiseParallel(input_layouts=Replicate(), {_SCATTERED})",
    "rowwise_rep": f"RowwiseParallel(input_layouts=Replicate(), {_SCATTERED})",
    "replicated_with_grad_allreduce": "SequenceParallel(sequence_dim=2, use_local_output=True)",
}
"""Torch's style by transformers' name of it; the last is for norms of single heads."""

_ALONE = {  # styles of a layer that is a part by itself, and gets a part of the sequence
    "colwise": "ColwiseParallel(input_layouts=Shard(1))",
    "rowwise": f"RowwiseParallel({_SCATTERED})",
}
_EMBEDDING = f"RowwiseParallel(input_layouts=Replicate(), {_SCATTERED})"
_HEAD = "ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())"
_NORM = "SequenceParallel()"
_TORCH_STYLES = (
    "ColwiseParallel",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "RowwiseParallel",
    "SequenceParallel",
)
_MAX_LINE = 92  # without the four spaces of the function's indentation
_HEADS = ("colwise_gather_output", "colwise_rep")


def split_sequences(
    code: Code, axes: MeshAxes, rules: TensorRules, module: nn.Module, blocks: list[Blocks]
) -> None:
    """Add the lines that split tensors by the rules, and the sequence between them.

    Raises:
        InputsError: if torch has no style for a part of the model.
    """
    found = _Styles(module, rules, blocks)
    styles = found.found()
    code.lines += ["styles = {", *(line for item in styles for line in _item_lines(*item)), "}"]
    code.lines.append(f'parallelize_module(model, mesh["{axes.tensor}"], styles)')
    if found.whole:
        split_by_transformers(code, axes, found.whole)
    code.lines += retied(rules)
    written = " ".join(style for _, style in styles)
    names = [name for name in _TORCH_STYLES if f"{name}(" in written] + ["parallelize_module"]
    code.imports.add(f"from torch.distributed.tensor.parallel import {', '.join(names)}")
    code.imports.add("from torch.distributed.tensor import Replicate, Shard")


def _item_lines(name: str, style: str) -> list[str]:
    """The lines of an item of a dictionary, with one argument per line if they are long."""
    line = f"    {quoted(name)}: {style},"
    if len(line) <= _MAX_LINE:
        return [line]
    call, _, arguments = style.removesuffix(")").partition("(")
    parts = re.split(r", (?=[a-z_]+=)", arguments)
    return [f"    {quoted(name)}: {call}(", *(f"        {part}," for part in parts), "    ),"]


class _Styles:
    """The styles of one model, by module names with ``*`` for numbers."""

    def __init__(self, module: nn.Module, rules: TensorRules, blocks: list[Blocks]) -> None:
        self._module, self._rules = module, rules.styles
        self._name = type(module).__name__
        self._in_blocks = tuple(name for group in blocks for name in group.names)
        self._styles: dict[str, str] = {}
        children = ((n, key) for n in self._in_blocks for key, _ in self._child(n).named_children())
        paths = (f"{name}.{key}" for name, key in children)
        self._runs_whole = {without_numbers(path) for path in paths if self._must_run_whole(path)}
        self.whole: dict[str, str] = {}  # tensor-parallel rules of parts that get whole sequences

    def found(self) -> list[tuple[str, str]]:
        if not self._in_blocks:
            raise self._refusal("has no repeated blocks")
        for name in self._in_blocks:
            block = self._child(name)
            for key, child in block.named_children():
                self._add_part_of_block(block, name, key, child)
        self._add_outside()
        left = [name for name in self._rules if name not in {*self._styles, *self.whole}]
        if left:
            raise self._refusal(f"splits {left[0]} by {self._rules[left[0]]!r}")
        return list(self._styles.items())

    def _add_part_of_block(self, block: nn.Module, name: str, key: str, child: nn.Module) -> None:
        path = f"{name}.{key}"
        rule = self._rules.get(without_numbers(path))
        inner = self._rules_below(path)
        if rule is not None and not inner:
            self._add(path, _ALONE, rule)
        elif inner and without_numbers(path) not in self._runs_whole:
            self._styles[without_numbers(path)] = _gathered(block, key, child, self._refusal)
            for below, style in inner.items():
                self._add(below, _INSIDE, style)
        elif _is_norm(child):
            self._styles[without_numbers(path)] = _NORM
        elif next(child.parameters(), None) is not None:
            style = _gathered(block, key, child, self._refusal, is_scattered=True)
            self._styles[without_numbers(path)] = style
            self.whole |= inner

    def _child(self, path: str) -> nn.Module:
        return self._module.get_submodule(path)

    def _must_run_whole(self, path: str) -> bool:
        """Whether a part gets plain tensors, since it has weights that no rule splits (a router),
        or rules that torch lacks.
        """
        part = self._child(path)
        for name, parameter in part.named_parameters(prefix=path):
            rule = without_numbers(name)
            if parameter.dim() > 1 and not {rule, rule.rpartition(".")[0]} & set(self._rules):
                return True
        return not set(self._rules_below(path).values()) <= set(_INSIDE)

    def _rules_below(self, path: str) -> dict[str, str]:
        inside = f"{without_numbers(path)}."
        return {name: rule for name, rule in self._rules.items() if name.startswith(inside)}

    def _add(self, path: str, styles: dict[str, str], rule: str) -> None:
        if rule not in styles:
            raise self._refusal(f"splits {without_numbers(path)} by {rule!r}")
        self._styles[without_numbers(path)] = styles[rule]

    def _add_outside(self) -> None:
        """Add the styles of the embedding, the last norm, and the head."""
        kinds = []
        for path, part in self._module.named_modules():
            is_leaf = next(part.children(), None) is None
            if not is_leaf or self._is_in_block(path) or next(part.parameters(), None) is None:
                continue
            kind, style = self._outside(path, part)
            kinds.append(kind)
            self._styles[without_numbers(path)] = style
        if kinds.count("embedding") != 1 or kinds.count("head") != 1:
            raise self._refusal("does not split one embedding and one head")

    def _outside(self, path: str, part: nn.Module) -> tuple[str, str]:
        rule = self._rules.get(without_numbers(path))
        if isinstance(part, nn.Embedding) and rule == "embedding_rowwise":
            return "embedding", _EMBEDDING
        if rule in _HEADS:
            return "head", _HEAD
        if rule is None and _is_norm(part):
            return "norm", _NORM
        by = "no rule splits" if rule is None else f"is split by {rule!r}"
        raise self._refusal(f"has {without_numbers(path)} outside its blocks, which {by}")

    def _is_in_block(self, path: str) -> bool:
        return any(path.startswith(f"{name}.") for name in self._in_blocks)

    def _refusal(self, reason: str) -> InputsError:
        return InputsError(
            f"{self._name} {reason}, so its sequence cannot be split along tp by torch's styles: "
            "leave out sequence_parallel, or apply SequenceParallel in a parallelize= of your own"
        )


def _is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm over the last dim, judged by its name and parameters."""
    shapes = [p.dim() for p in module.parameters(recurse=False)]
    is_leaf = next(module.children(), None) is None
    return is_leaf and "Norm" in type(module).__name__ and bool(shapes) and set(shapes) == {1}


def _gathered(
    block: nn.Module, key: str, child: nn.Module, refusal: Any, *, is_scattered: bool = False
) -> str:
    """The style that gathers the inputs of a part of a block, as the block passes them, and, if
    `is_scattered`, scatters its outputs.
    """
    call = _call_of(type(block).forward, key)
    if call is None:
        raise refusal(
            f"does not call self.{key}(...), or not always alike, in {type(block).__name__}.forward"
        )
    if call.num_positional:
        rest = ", None" * (call.num_positional - 1)
        given, wanted = (f"({name}(){rest},)" for name in ("Shard", "Replicate"))
        given = given.replace("Shard()", "Shard(1)")
        if call.num_positional == 1:
            given, wanted = "Shard(1)", "Replicate()"
        layouts = f"input_layouts={given}, desired_input_layouts={wanted}"
        return _prepared(layouts, call.num_results if is_scattered else 0)
    taken = [name for name in inspect.signature(child.forward).parameters if name in call.named]
    first = "hidden_states" if "hidden_states" in call.named else (taken or [""])[0]
    if not first:
        raise refusal(f"does not name what it gives self.{key} in {type(block).__name__}.forward")
    shard, whole = f'{{"{first}": Shard(1)}}', f'{{"{first}": Replicate()}}'
    layouts = f"input_kwarg_layouts={shard}, desired_input_kwarg_layouts={whole}"
    return _prepared(layouts, call.num_results if is_scattered else 0)


def _prepared(layouts: str, num_results: int) -> str:
    """The style for a layout of inputs; if the part has results, the first is scattered."""
    if not num_results:
        return f"PrepareModuleInput({layouts})"
    rest = ", None" * (num_results - 1)
    whole, shard = f"(Replicate(){rest},)", f"(Shard(1){rest},)"
    if num_results == 1:
        whole, shard = "Replicate()", "Shard(1)"
    outputs = f"output_layouts={whole}, desired_output_layouts={shard}, use_local_output=False"
    return f"PrepareModuleInputOutput({layouts}, use_local_input=True, {outputs})"


class _CallOf(NamedTuple):
    """The call of a child module, which torch's style has to know."""

    num_positional: int
    named: tuple[str, ...]
    num_results: int = 1  # 2 in `x, _ = self.attention(x)`


def _call_of(function: Any, key: str) -> _CallOf | None:
    """The call of ``self.<key>`` in a function; None if there is none, or calls differ."""
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError):  # the function has no source
        return None
    nodes = list(ast.walk(ast.parse(source)))
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and (node.func.value.id, node.func.attr) == ("self", key)
    ]
    unpacked = {
        id(node.value): len(node.targets[0].elts)
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
    }
    if any(isinstance(arg, ast.Starred) for call in calls for arg in call.args):
        return None
    found = {
        _CallOf(
            len(call.args),
            tuple(word.arg for word in call.keywords if word.arg),
            unpacked.get(id(call), 1),
        )
        for call in calls
    }
    return found.pop() if len(found) == 1 else None
