"""The code that turns a model into a pipeline.

Input: a transformers model that declares its parts (``base_model_pp_plan``, ``_pp_plan``), or an
``nn.Sequential``; the lines that lay out one stage. Output: the text of ``parallelize``, which
returns a schedule. Invariant: each part of the model is in one stage; the stages in sequence
compute what the model computes.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import nn

from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.distributed.parallelize.pipeline_stages import PipelineSchedule
from torchfake.distributed.parallelize.writer import Code, function_text
from torchfake.errors import InputsError
from torchfake.inspect.records.messages import one_line
from torchfake.observe import interrupt_behind

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
    """The parts into which a model is cut, by their full names in the model."""

    first: tuple[str, ...]  # parts of the first stage only
    layers: str  # the list of layers that is cut; "" for an nn.Sequential
    last: tuple[str, ...]  # parts of the last stage only; the head is the last of them
    num_layers: int
    has_types: bool = False  # whether the config names a type of each layer


def parts_of(module: nn.Module) -> Parts:
    """The parts into which a model is cut.

    Raises:
        InputsError: if the model does not declare them.
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
        if part.replace(".", "_").isidentifier()  # a config may set it, and it becomes code
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
    """Check that a model can be cut into `num_stages` stages.

    Raises:
        InputsError: if it cannot be.
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
    """Check that a model without its layers returns its input: each stage would repeat anything
    else that the model does.
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
    code: Code, stage: Code, parts: Parts, axes: MeshAxes, schedule: PipelineSchedule, number: int
) -> None:
    """Add to `code`, which has the lines for the whole model, the lines that cut it into stages.
    `stage` has the lines that lay out one stage; `number` is the number of micro-batches.
    """
    size = axes.pipeline_ranks
    num_stages = size * schedule.stages_per_rank
    is_sequential = not parts.layers
    code.imports |= {*stage.imports, "import torch"}
    code.imports.add(f"{_IMPORT} PipelineStage, {schedule.class_name}")
    code.helpers += [*stage.helpers, _SEQUENTIAL_LOSS if is_sequential else _STAGE]
    if stage.lines:
        lay_out = function_text("lay_out(model, stage, mesh)", [*stage.lines, "return stage"])
        code.helpers.append(lay_out)
    code.lines.append(f'rank = mesh["{axes.pipeline}"].get_local_rank()')
    if not is_sequential:
        code.imports.add("from functools import partial")
        loss = "loss_fn = partial(model.loss_function, vocab_size=model.config.vocab_size)"
        code.lines.append(loss)
    code.lines += [f"bounds = {bounds(parts.num_layers, num_stages)}", "stages = []"]
    code.lines += [f"for i in {schedule.indices(size)}:", "    first, last = bounds[i : i + 2]"]
    several = schedule.stages_per_rank > 1 and not is_sequential
    if several or parts.has_types:
        code.imports.add("import copy")
    sequential = ["stage = model[first:last]"]
    cut = sequential if is_sequential else _cut(parts, num_stages, several)
    if stage.lines:
        cut.append(f"stage = lay_out({'stage' if is_sequential else 'part'}, stage, mesh)")
    group = f'group=mesh.get_group("{axes.pipeline}")'
    device = "torch.device(mesh.device_type)"
    cut.append(f"stages.append(PipelineStage(stage, i, {num_stages}, {device}, {group}))")
    code.lines += [f"    {line}" for line in cut]
    given = "stages[0]" if schedule.stages_per_rank == 1 else "stages"
    code.result = f"{schedule.class_name}({given}, {number}, loss_fn=loss_fn)"


def bounds(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """The first layer of each stage, and the end of the last; first stages may have one more layer.

    >>> bounds(10, 4)
    (0, 3, 6, 8, 10)
    """
    size, rest = divmod(num_layers, num_stages)
    return tuple(size * i + min(i, rest) for i in range(num_stages + 1))


def _cut(parts: Parts, num_stages: int, several: bool) -> list[str]:
    """The lines that reduce a transformers model to one stage."""
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


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _parameters(module: nn.Module, names: tuple[str, ...]) -> set[int]:
    return {id(p) for name in names for p in module.get_submodule(name).parameters()}
