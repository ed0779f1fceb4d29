"""The function that lays a model out over a mesh, as the code to paste.

Input: a :class:`Layout` of options, and a model. Output: the text of ``parallelize(model, mesh)``
and of the call. Invariant: a plan runs this text and no other code. Called by: ``strategy``.
"""

from __future__ import annotations

import importlib.util
import keyword
from dataclasses import dataclass, field

import torch
from torch import nn

from torchfake.distributed.strategies.blocks import Blocks, repeated_blocks
from torchfake.distributed.strategies.mesh_axes import MeshAxes
from torchfake.distributed.strategies.tensor_rules import TORCH_STYLES, TensorRules
from torchfake.errors import InputsError

_REPLICATE = "torch.distributed._composable.replicate_with_fsdp"

_KEEPING = """KEPT = {  # besides every second matrix product; all else runs again going backward
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}


def contexts():
    num_products = {False: 0, True: 0}  # of the first run, and of the second

    def policy(ctx, op, *args, **kwargs):
        if op in PRODUCTS:
            num_products[ctx.is_recompute] += 1
        is_kept = op in KEPT or (op in PRODUCTS and num_products[ctx.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
"""

_NO_CACHE = """for part in model.modules():
    if getattr(getattr(part, "config", None), "use_cache", False):
        part.config.use_cache = False  # of keys and values, for generation"""

_RULES_OF_TRANSFORMERS = """    styles = {}
    parameters = dict(model.named_parameters())
    for name, module in model.named_modules():
        rule = re.sub(r"(?<=\\.)\\d+(?=\\.|$)", "*", name)
        for key, _ in module.named_parameters(recurse=False):
            style = rules.get(f"{rule}.{key}", rules.get(rule))
            if style is not None and f"{name}.{key}" in parameters:
                styles[f"{name}.{key}"] = style
        if rule in rules:
            styles[name] = rules[rule]
"""


@dataclass
class Code:
    """Code that is being written."""

    imports: set[str] = field(default_factory=set)
    helpers: list[str] = field(default_factory=list)  # definitions above the function
    lines: list[str] = field(default_factory=list)  # of the function

    def text(self) -> str:
        """The function, with what it needs."""
        plain = sorted(line for line in self.imports if line.startswith("import"))
        named = sorted(self.imports - set(plain))
        imports = "\n".join([*plain, *named])
        body = "\n".join(f"    {line}".rstrip() for line in [*self.lines, "return model"])
        function = f"def parallelize(model, mesh):\n{body}\n"
        return "\n\n\n".join([imports, *(text.rstrip() for text in self.helpers), function])


def code_of(
    module: nn.Module,
    axes: MeshAxes,
    *,
    rules: TensorRules | None,
    checkpoint: str,
    is_mixed: bool,
    zero: int,
    offload: bool,
) -> str:
    """The text of ``parallelize(model, mesh)`` for this model.

    Raises:
        InputsError: if something that is asked for cannot be done with it.
    """
    code, blocks = Code({"import torch"}), repeated_blocks(module)
    _without_cache(code, module)
    if rules is not None:
        _tensor_parallel(code, axes, rules)
    if checkpoint != "none":
        _checkpointed(code, module, blocks, checkpoint)
    _data_parallel(code, axes, blocks, is_mixed, zero, offload)
    if "torch." not in code.text().replace("from torch.", ""):
        code.imports.remove("import torch")
    return code.text()


def call_text(axes: MeshAxes, device: str) -> str:
    """The lines that make the mesh, and call the function."""
    sizes, names = tuple(axes.sizes.values()), tuple(axes.sizes)
    named = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
    return (
        f'mesh = init_device_mesh("{device}", {sizes}, mesh_dim_names=({named}))\n'
        "model = parallelize(model, mesh)\n"
    )


MESH_IMPORT = "from torch.distributed.device_mesh import init_device_mesh"


def _without_cache(code: Code, module: nn.Module) -> None:
    """Without the cache of generation, to which checkpoints would append keys and values twice."""
    configs = (getattr(part, "config", None) for part in module.modules())
    if any(getattr(config, "use_cache", False) is True for config in configs):
        code.lines += _NO_CACHE.splitlines()


def _tensor_parallel(code: Code, axes: MeshAxes, rules: TensorRules) -> None:
    mesh = f'mesh["{axes.tensor}"]'
    if rules.is_torch:
        written = {name: TORCH_STYLES[style] for name, style in rules.styles.items()}
        _add_styles_imports(code, "".join(written.values()))
        code.lines += ["styles = {", *(f'    "{k}": {v},' for k, v in written.items()), "}"]
        code.lines.append(f"parallelize_module(model, {mesh}, styles)")
    else:
        engine = "transformers.distributed.tensor_parallel"
        code.imports |= {"import re", f"from {engine} import apply_tensor_parallelism"}
        code.lines += ["rules = {", *(f'    "{k}": "{v}",' for k, v in rules.styles.items()), "}"]
        code.lines += [line[4:] for line in _RULES_OF_TRANSFORMERS.splitlines()]
        code.lines.append(f"apply_tensor_parallelism(model, {mesh}, styles)")
    for first, other in rules.tied:
        code.lines.append(f"{expression(other)} = {expression(first)}  # they are tied")


def _add_styles_imports(code: Code, written: str) -> None:
    names = [n for n in ("ColwiseParallel", "RowwiseParallel") if n in written]
    names.append("parallelize_module")
    code.imports.add(f"from torch.distributed.tensor.parallel import {', '.join(names)}")
    if "Replicate()" in written:
        code.imports.add("from torch.distributed.tensor import Replicate")


def _checkpointed(code: Code, module: nn.Module, blocks: list[Blocks], kind: str) -> None:
    if not blocks:
        raise InputsError(
            f"{type(module).__name__} has no repeated blocks to checkpoint: leave checkpoint at "
            "none, or apply checkpoint_wrapper in a parallelize= of your own"
        )
    wrapper = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    code.imports.add(f"from {wrapper} import checkpoint_wrapper")
    options = ""
    if kind == "selective":
        names = "CheckpointPolicy, create_selective_checkpoint_contexts"
        code.imports.add(f"from torch.utils.checkpoint import {names}")
        code.helpers.append(_KEEPING)
        options = ", context_fn=contexts"
    for group in blocks:
        owner = expression(group.path)
        if group.is_whole:
            code.lines.append(f"for i, block in enumerate({owner}):")
            code.lines.append(f"    {owner}[i] = checkpoint_wrapper(block{options})")
        else:
            code.lines.append(f"for i in {_positions(module, group)}:")
            code.lines.append(f"    {owner}[i] = checkpoint_wrapper({owner}[i]{options})")


def _data_parallel(
    code: Code, axes: MeshAxes, blocks: list[Blocks], is_mixed: bool, zero: int, offload: bool
) -> None:
    names = [n for n in (axes.replicate, axes.shard) if axes.sizes.get(n, 1) > 1]
    if not names:
        return
    apply = "fully_shard" if axes.shard in names else "replicate"
    options = ["mesh=mesh[" + ", ".join(f'"{name}"' for name in names) + "]"]
    imported = {"fully_shard"} if apply == "fully_shard" else set()
    if is_mixed:
        imported.add("MixedPrecisionPolicy")
        code.lines.append("policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)")
        options.append("mp_policy=policy")
    if offload:
        imported.add("CPUOffloadPolicy")
        options.append("offload_policy=CPUOffloadPolicy()")
    if zero == 2 and apply == "fully_shard":
        options.append("reshard_after_forward=False")
    if apply == "replicate":
        check_replicate()
        code.imports.add(f"from {_REPLICATE} import replicate")
    if imported:
        code.imports.add(f"from torch.distributed.fsdp import {', '.join(sorted(imported))}")
    given = ", ".join(options)
    for group in blocks:
        code.lines += [f"for block in {_members(group)}:", f"    {apply}(block, {given})"]
    code.lines.append(f"{apply}(model, {given})")


def check_replicate() -> None:
    """Refuse replication where this torch has no engine for it that fakes can run."""
    if importlib.util.find_spec(_REPLICATE) is None:
        raise InputsError(
            f"torch {torch.__version__} has no {_REPLICATE}, and DistributedDataParallel reads "
            "parameters in C++: shard them (dp), or take torch 2.13 or newer"
        )


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
        return f'model.get_submodule("{owner}").{last}'
    return f'model.get_submodule("{path}")'


def _members(group: Blocks) -> str:
    """The expression of the blocks of a group."""
    owner = expression(group.path)
    if group.is_whole:
        return owner
    names = ", ".join(f'"{name}"' for name in group.names)
    return f"map(model.get_submodule, [{names}])"


def _positions(module: nn.Module, group: Blocks) -> tuple[int, ...]:
    keys = [key for key, _ in module.get_submodule(group.path).named_children()]
    return tuple(keys.index(key) for key in group.keys)
