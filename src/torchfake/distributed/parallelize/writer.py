"""A buffer for the text of ``parallelize(model, mesh)``, and expressions for names.

Input: imports, definitions and lines. Output: the text. Invariant: any name of a submodule or
parameter is written as valid Python.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field

from torch import nn

from torchfake.distributed.parallelize.blocks import Blocks
from torchfake.distributed.parallelize.mesh_axes import MeshAxes


@dataclass
class Code:
    """The imports, definitions and lines of a function that is being generated."""

    imports: set[str] = field(default_factory=set)
    helpers: list[str] = field(default_factory=list)  # definitions above the function
    lines: list[str] = field(default_factory=list)  # the body of the function
    result: str = "model"  # the expression that the function returns

    def text(self) -> str:
        """The text: imports, definitions, and the function."""
        imports = sorted(self.imports, key=lambda line: (line.startswith("from"), line))
        function = function_text("parallelize(model, mesh)", [*self.lines, f"return {self.result}"])
        return "\n\n\n".join(["\n".join(imports), *map(str.rstrip, self.helpers), function])


def function_text(signature: str, lines: list[str]) -> str:
    """The text of a function definition."""
    body = "\n".join(f"    {line}".rstrip() for line in lines)
    return f"def {signature}:\n{body}\n"


def expression(path: str) -> str:
    """The Python expression of a submodule or a parameter of ``model``.

    >>> expression("model.layers"), expression("stages.0.blocks")
    ('model.model.layers', 'model.get_submodule("stages.0.blocks")')
    """
    parts = path.split(".") if path else []
    if all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        return ".".join(["model", *parts])
    owner, _, last = path.rpartition(".")
    if last in ("weight", "bias"):
        return f"model.get_submodule({quoted(owner)}).{last}"
    return f"model.get_submodule({quoted(path)})"


def quoted(name: str) -> str:
    """A name as a Python string literal, properly escaped: a config may choose names of modules,
    and the code is run.

    >>> print(quoted("layers.*.q_proj"), quoted('"]; f(); ["'))
    "layers.*.q_proj" '"]; f(); ["'
    """
    return f'"{name}"' if _PLAIN.fullmatch(name) else repr(name)


_PLAIN = re.compile(r"[\w.*-]*", re.ASCII)


def members(group: Blocks) -> str:
    """The Python expression of the blocks of a group."""
    owner = expression(group.path)
    if group.is_whole:
        return owner
    return f"map(model.get_submodule, [{_quoted(group.names)}])"


def positions(module: nn.Module, group: Blocks) -> tuple[int, ...]:
    """The positions of a group's blocks in their list."""
    keys = [key for key, _ in module.get_submodule(group.path).named_children()]
    return tuple(keys.index(key) for key in group.keys)


def data_mesh(code: Code, axes: MeshAxes, sharding: list[str]) -> str:
    """The Python expression of the mesh over which modules are sharded and replicated. If there are
    several sharding axes, adds a line that flattens them.
    """
    joined = "_".join(sharding)
    if len(sharding) > 1:
        line = f'mesh[{_quoted(sharding)}]._flatten("{joined}")'
        if line not in code.lines:
            code.lines.append(line)
    is_copied = axes.sizes.get(axes.replicate, 1) > 1
    names = [*([axes.replicate] if is_copied else []), *([joined] if joined else [])]
    return f"mesh[{_quoted(names)}]"


def _quoted(names: list[str]) -> str:
    return ", ".join(map(quoted, names))
