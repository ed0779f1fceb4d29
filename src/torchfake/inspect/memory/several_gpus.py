"""The plan to try if a model fits on no single GPU, as a command and as a call to paste.

Input: an estimate, and the largest GPU that was tried. Output: a :class:`Layout`, and its text; the
call for the same step in smaller micro-batches.
Invariant: the number of GPUs is approximate: enough for the states that FSDP2 shards, the
activations of one sample and the gathered blocks; ``plan`` gives exact figures.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.errors import InputsError
from torchfake.inspect.inputs.resizing import BATCH, SEQ, size_of
from torchfake.inspect.memory.estimate_record import Estimate
from torchfake.inspect.records.tensor_specs import dtype_name
from torchfake.inspect.steps.step import NO_OPTIMIZER, Step
from torchfake.inspect.storages.lifetimes import PHASES

_MOST_GPUS = 1 << 14
_FULL = 0.8  # share of a GPU's memory to fill, since the sizes counted here are approximate
_STATE_CATEGORIES = ("parameters", "gradients", "optimizer state", "workspace", "inputs")


class Layout(NamedTuple):
    """How a model that fits on no single GPU may be trained on several."""

    num_gpus: int
    gpu: str
    batch: int | None  # samples per GPU
    seq: int | None
    optimizer: str
    precision: str
    checkpoint: str


def layout_for(estimate: Estimate, name: str, gpu: CudaProfile, usable_bytes: int) -> Layout:
    """FSDP2 on as many GPUs as the training states and the activations of the batch need, rounded
    up to a power of two.

    Args:
        estimate: the estimate of a step that does not fit.
        name: the name of the GPU.
        gpu: the profile of the GPU.
        usable_bytes: memory of one GPU that the caching allocator can use.
    """
    module, trains = estimate.subject.module, estimate.mode == "training"
    precision = _precision(estimate)
    batch, seq = _size(estimate, BATCH), _size(estimate, SEQ)
    sample = _activation_bytes(estimate) // (batch or 1)
    states, gathered = _state_bytes(estimate, precision), _gathered_bytes(module)
    room = _FULL * usable_bytes - gathered
    checkpoint = "none" if trains and 2 * sample < room else "full"
    room -= sample if checkpoint == "none" else 0
    more = sample if checkpoint == "none" and trains else 0  # of each sample but the first

    def is_full(number: int) -> bool:
        samples = max(1, (batch or 1) // number)
        return states + number * more * (samples - 1) > number * max(room, 0)

    number = 2
    while is_full(number) and number < _MOST_GPUS:
        number *= 2
    each = None if batch is None else max(1, batch // number)
    optimizer = estimate.step.optimizer if trains else "adamw"
    optimizer = NO_OPTIMIZER if optimizer is None else optimizer
    optimizer = optimizer if isinstance(optimizer, str) else "adamw"
    return Layout(number, name, each, seq, optimizer, precision, checkpoint)


def command(layout: Layout, target: str, options: Sequence[str], inputs: Sequence[str]) -> str:
    """The command ``torchfake plan TARGET --gpus 16 ...``, with the user's options and inputs."""
    words = ["torchfake", "plan", target, *options, "--gpus", str(layout.num_gpus)]
    words += ["--gpu", layout.gpu]
    if layout.batch is not None:
        words += ["--batch", str(layout.num_gpus * layout.batch)]
    for text in inputs:
        words += ["--input", text]
    if layout.seq is not None and not inputs:
        words += ["--seq", str(layout.seq)]
    words += ["--optimizer", layout.optimizer] if layout.optimizer != "adamw" else []
    words += ["--precision", layout.precision] if layout.precision != "mixed" else []
    words += ["--checkpoint", layout.checkpoint] if layout.checkpoint != "none" else []
    return shlex.join(words)


def call(layout: Layout, estimate: Estimate) -> tuple[str, ...]:
    """The Python code that plans a layout of the user's ``model``, with its ``inputs``."""
    made_up = hasattr(estimate.subject.kwargs, "resized")  # inputs from example_inputs
    inputs = "inputs"
    if made_up:
        sizes = "" if layout.seq is None else f", seq={layout.seq}"
        inputs = f"example_inputs(model, batch={layout.batch or 1}{sizes}, labels=True)"
    options = [f'{{"dp": {layout.num_gpus}}}']
    options += [f'precision="{layout.precision}"'] if layout.precision != "mixed" else []
    options += [f'checkpoint="{layout.checkpoint}"'] if layout.checkpoint != "none" else []
    imports = "from copy import deepcopy; from torchfake import "
    imports += f"{'example_inputs, ' * made_up}plan; from torchfake.distributed import Strategy"
    return imports, (
        f"plan(lambda: deepcopy(model), inputs={inputs}, "
        f'optimizer="{layout.optimizer}", gpu="{layout.gpu}", '
        f"**Strategy({', '.join(options)}).plan_options)"
    )


def accumulated_call(estimate: Estimate, name: str, batch: int, accumulate: int) -> str | None:
    """The Python code that fits the step of the user's ``model`` with smaller micro-batches; None
    if the step has options or inputs that the code cannot name.
    """
    step, sizes = estimate.step, estimate.subject.kwargs
    named = isinstance(step.optimizer, str | None) and step.around is Step.around
    if not (named and is_plain(estimate) and hasattr(sizes, "resized")) or step.lengths:
        return None
    options = {
        "seq": getattr(sizes, "seq", None),
        "optimizer": step.optimizer,
        "autocast": None if step.autocast is None else dtype_name(step.autocast),
        "keep_gradients": step.keep_gradients or None,
    }
    words = [f"batch={batch}", *(f"{k}={v!r}" for k, v in options.items() if v is not None)]
    given = ", ".join([*words, f"accumulate={accumulate}"]).replace("'", '"')
    return f'fit(estimate(model, {given}, mode="training"), "{name}")'


def _precision(estimate: Estimate) -> str:
    """The value of ``plan``'s option `precision` that corresponds to the step."""
    dtypes = {p.dtype for p in estimate.subject.module.parameters()}
    if dtypes == {torch.bfloat16} or not is_plain(estimate):
        return "bf16"
    trains = estimate.mode == "training"
    return "fp32" if trains and estimate.step.autocast is None else "mixed"


def _size(estimate: Estimate, name: str) -> int | None:
    try:
        return size_of(estimate.subject, name)
    except InputsError:
        return None


def _activation_bytes(estimate: Estimate) -> int:
    """Peak bytes in the forward and backward passes, without the state kept between steps."""
    timeline = estimate.timeline
    columns = [i for i, name in enumerate(timeline.categories) if name not in _STATE_CATEGORIES]
    in_passes = timeline.phase != PHASES.index("optimizer")
    return int(timeline.num_bytes[in_passes][:, columns].sum(axis=1).max(initial=0))


def _state_bytes(estimate: Estimate, precision: str) -> int:
    """Bytes of parameters, gradients, the optimizer's state as the step has it, and the temporaries
    of an optimizer with a state. Beside frozen weights, adapters are too small to count.
    """
    parameters = [*estimate.subject.module.parameters()]
    state = _state_of_optimizer(estimate) / sum(p.nbytes for p in parameters)
    trained = 1 + state + (state > 0) if is_plain(estimate) else 0
    each = (2 if precision == "bf16" else 4) * (1 + trained)
    return round(each * sum(p.numel() for p in parameters))


def _state_of_optimizer(estimate: Estimate) -> int:
    """Bytes of the optimizer's state; AdamW's two moments, if `plan` cannot be given the step's."""
    if not isinstance(estimate.step.optimizer, str | None):
        return 2 * sum(p.nbytes for p in estimate.subject.module.parameters())
    timeline = estimate.timeline
    columns = [i for i, name in enumerate(timeline.categories) if name == "optimizer state"]
    return int(timeline.num_bytes[:, columns].max(initial=0))


def _gathered_bytes(module: nn.Module) -> int:
    """Bytes that FSDP2 holds unsharded, with gradients: all outside of blocks, and two blocks."""
    lists = (nn.ModuleList, nn.Sequential)
    blocks = [child for part in module.modules() if isinstance(part, lists) for child in part]
    sizes = {id(p): p.numel() for p in module.parameters()}
    in_blocks = {id(p) for block in blocks for p in block.parameters()}
    rest = sum(size for key, size in sizes.items() if key not in in_blocks)
    largest = max((_numel(block) for block in blocks), default=0)
    return 6 * (rest + 2 * largest)


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def may_be_planned(estimate: Estimate) -> bool:
    """Whether ``plan``, which plans training, may be advised: for a module's training step without
    TrainingArguments.
    """
    if estimate.mode != "training":
        return False
    step: Any = estimate.step
    return estimate.subject.program is None and step.training is None


def is_plain(estimate: Estimate) -> bool:
    """Whether all weights are trained as they are, without adapters or quantization."""
    step: Any = estimate.step
    return step.peft is None and step.weights is None
