"""The function that makes a pipeline of a model, as the code to paste.

Input: a model of transformers that says how it is cut (``base_model_pp_plan``, ``_pp_plan``), or an
``nn.Sequential``; the lines that lay one stage out. Output: the text of ``parallelize``, which
gives a schedule. Invariant: each part of the model is in one stage; the stages after each other do
what the model does.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import nn

from torchfake._torch.contexts import interrupt_behind
from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.schedules import PipelineSchedule
from torchfake.distributed.parallelize.writer import Code
from torchfake.errors import InputsError
from torchfake.inspect.describe.messages import one_line

_STAGE = """class Stage(torch.nn.Module):
    def __init__(self, model, takes, gives):
        super().__init__()
        self.model, self.takes, self.gives = model, takes, gives

    def forward(self, x):
        return self.model(**{self.takes: x})[self.gives]
"""

_CUT_TYPES = """part.{owner}.config = copy.copy(part.{owner}.config)
part.{owner}.config.layer_types = part.{owner}.config.layer_types[first:last]"""

_SEQUENTIAL_LOSS = """def loss_fn(output, target):
    return output.sum()  # in place of a loss of yours
"""

_IMPORT = "from torch.distributed.pipelining import"


class Parts(NamedTuple):
    """How a model is cut: full names of its parts, without that of the model."""

    first: tuple[str, ...]  # of the first stage alone
    layers: str  # the list that is cut; "" of an nn.Sequential
    last: tuple[str, ...]  # of the last stage alone: the head is the last of them
    num_layers: int
    has_types: bool = False  # whether the config names a type of each layer


def parts_of(module: nn.Module) -> Parts:
    """The parts that a model is cut into.

    Raises:
        InputsError: if it does not say.
    """
    name = type(module).__name__
    if type(module) is nn.Sequential:
        return Parts((), "", (), len(module))
    config: Any = getattr(module, "config", None)
    plan: Any = getattr(config, "base_model_pp_plan", None)
    head: Any = getattr(type(module), "_pp_plan", None)
    if not plan or not head:
        raise InputsError(
            f"{name} does not say how it is cut into stages: give plan a parallelize= of your own "
            "that returns a schedule of torch.distributed.pipelining, or leave pp out of the mesh"
        )
    base = getattr(module, "base_model_prefix", "")
    names = [
        part
        for part in plan
        if part.replace(".", "_").isidentifier()  # it is written as code, and a config may have it
        and _submodule(module, f"{base}.{part}") is not None
    ]
    lists = [
        part for part in names if isinstance(module.get_submodule(f"{base}.{part}"), nn.ModuleList)
    ]
    if len(lists) != 1 or not all(_submodule(module, part) is not None for part in head):
        raise InputsError(
            f"the plan of pipelines that {name} ships names modules that it does not have: give "
            "plan a parallelize= of your own"
        )
    at = names.index(lists[0])
    before, after = ([f"{base}.{part}" for part in some] for some in (names[:at], names[at + 1 :]))
    layers = f"{base}.{lists[0]}"
    number = len(module.get_submodule(layers))  # type: ignore[arg-type]
    has_types = len(set(getattr(config, "layer_types", None) or ())) > 1
    return Parts(tuple(before), layers, (*after, *head), number, has_types)


def check_parts(module: nn.Module, parts: Parts, num_stages: int) -> None:
    """Check that a model can be cut into so many stages.

    Raises:
        InputsError: if it cannot.
    """
    name = type(module).__name__
    if parts.num_layers < num_stages:
        raise InputsError(
            f"{name} has {parts.num_layers} layers, and the pipeline {num_stages} stages: give pp "
            "a smaller size, or the schedule 1f1b, which has one stage on each rank"
        )
    if parts.layers:
        _check_passes_on(module, parts)
    first, last = (_parameters(module, names) for names in (parts.first, parts.last))
    if first & last:
        raise InputsError(
            f"{name} ties parameters of its first and its last stage, which are on other ranks: "
            "build it without (tie_word_embeddings=false)"
        )


def _check_passes_on(module: nn.Module, parts: Parts) -> None:
    """Check that a model without layers gives what it is given: what it did besides, each stage
    would do again.
    """
    base_name, _, layers = parts.layers.rpartition(".")
    shell = copy.copy(module.get_submodule(base_name))
    inner = [name.rpartition(".")[2] for name in parts.last if name.startswith(f"{base_name}.")]
    replaced = {layers: nn.ModuleList(), **{name: nn.Identity() for name in inner}}
    shell._modules = {**shell._modules, **replaced}
    weight = next(module.get_submodule(base_name).parameters())
    width = module.config.get_text_config().hidden_size  # type: ignore[union-attr, operator]
    try:
        with torch.no_grad():
            given = weight.new_empty(1, 2, width)
            result = shell(inputs_embeds=given, use_cache=False)["last_hidden_state"]
    except Exception as error:
        if interrupt_behind(error) is not None:
            raise
        result, reason = None, f" ({one_line(error)})"
    else:
        reason = ""
    if result is not given:
        raise InputsError(
            f"the stages of a pipeline cannot be {type(module).__name__} with fewer layers, which "
            f"does more than to run them{reason}: give plan a parallelize= of your own"
        )


def write_pipeline(
    whole: Code, stage: Code, parts: Parts, axes: MeshAxes, schedule: PipelineSchedule, number: int
) -> str:
    """The text: `whole` lays the model out before it is cut, `stage` each stage after that; the
    schedule has this number of micro-batches.
    """
    size = axes.pipeline_ranks
    num_stages = size * schedule.stages_per_rank
    is_sequential = not parts.layers
    imports = {*whole.imports, *stage.imports, "import torch"}
    imports.add(f"{_IMPORT} PipelineStage, {schedule.class_name}")
    helpers = [*whole.helpers, *stage.helpers, _SEQUENTIAL_LOSS if is_sequential else _STAGE]
    if stage.lines:
        stage.lines.append("return stage")
        helpers.append("def lay_out(model, stage, mesh):\n" + _indented(stage.lines))
    lines = [*whole.lines, f'rank = mesh["{axes.pipeline}"].get_local_rank()']
    if not is_sequential:
        imports.add("from functools import partial")
        lines.append("loss_fn = partial(model.loss_function, vocab_size=model.config.vocab_size)")
    lines += [f"bounds = {bounds(parts.num_layers, num_stages)}", "stages = []"]
    lines += [f"for i in {schedule.indices(size)}:", "    first, last = bounds[i : i + 2]"]
    several = schedule.stages_per_rank > 1 and not is_sequential
    if several or parts.has_types:
        imports.add("import copy")
    cut = _cut_sequential() if is_sequential else _cut(parts, num_stages, several)
    lines += [f"    {line}" for line in cut]
    if stage.lines:
        lines.append(f"    stage = lay_out({'stage' if is_sequential else 'part'}, stage, mesh)")
    group = f'group=mesh.get_group("{axes.pipeline}")'
    device = "torch.device(mesh.device_type)"
    lines.append(f"    stages.append(PipelineStage(stage, i, {num_stages}, {device}, {group}))")
    given = "stages[0]" if schedule.stages_per_rank == 1 else "stages"
    lines.append(f"return {schedule.class_name}({given}, {number}, loss_fn=loss_fn)")
    helpers.append("def parallelize(model, mesh):\n" + _indented(lines))
    plain = sorted(line for line in imports if line.startswith("import"))
    head = "\n".join([*plain, *sorted(imports - set(plain))])
    return "\n\n\n".join([head, *(text.rstrip() for text in helpers)]) + "\n"


def bounds(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Where stages begin, and the last one ends: the first ones have one layer more, if some do.

    >>> bounds(10, 4)
    (0, 3, 6, 8, 10)
    """
    size, rest = divmod(num_layers, num_stages)
    return tuple(size * i + min(i, rest) for i in range(num_stages + 1))


def _cut_sequential() -> list[str]:
    return ["stage = model[first:last]"]


def _cut(parts: Parts, num_stages: int, several: bool) -> list[str]:
    """The lines that leave one stage of a model of transformers."""
    lines = ["part = copy.deepcopy(model)" if several else "part = model"]
    lines += [f"layers = part.{parts.layers}", "del layers[last:], layers[:first]"]
    if parts.has_types:
        lines += _CUT_TYPES.format(owner=parts.layers.rpartition(".")[0]).splitlines()
    lines.append("if i > 0:")
    lines += [f"    part.{name} = torch.nn.Identity()" for name in parts.first]
    lines += ['takes = "inputs_embeds" if i > 0 else "input_ids"', f"if i < {num_stages - 1}:"]
    base = parts.layers.rpartition(".")[0]
    inner = [name for name in parts.last if name.startswith(f"{base}.")]
    lines += [f"    part.{name} = torch.nn.Identity()" for name in inner]
    lines.append(f'    stage = Stage(part.{base}, takes, "last_hidden_state")')
    return [*lines, "else:", '    stage = Stage(part, takes, "logits")']


def _indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}".rstrip() for line in lines) + "\n"


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _parameters(module: nn.Module, names: tuple[str, ...]) -> set[int]:
    return {id(p) for name in names for p in module.get_submodule(name).parameters()}
