"""A target whose weights are quantized, or that has LoRA adapters.

Input: a Target, a scheme, the rank and layers of adapters. Output: a Target that builds the model
with them, the precision of its plan, notes. Invariant: a function that builds the model is all that
changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchfake.distributed.parallelize.mesh_axes import MeshAxes
from torchfake.errors import InputsError
from torchfake.inspect.contents.schemes import scheme_named
from torchfake.inspect.steps.adapters import add_adapters, lora_config
from torchfake.inspect.steps.quantized import quantize
from torchfake.inspect.steps.step import check_trains
from torchfake.inspect.targets.target import Target


def adapted(
    target: Target, weights: str | None, lora: int | None, lora_target: tuple[str, ...] = ()
) -> Target:
    """The target with quantized weights, then adapters; itself if there are neither.

    Raises:
        InputsError: when it is built, if the model has no such layers.
        MissingExtraError: when it is built, if a library is not installed.
    """
    if weights is None and lora is None:
        return target

    def construct() -> Any:
        module = target.construct()
        if target.dtype is not None:
            module = module.to(target.dtype)
        config = None if lora is None else lora_config(module, lora, lora_target)
        if weights is not None:
            module = quantize(module, weights, shards=True)
        return module if config is None else add_adapters(module, config)

    return replace(target, construct=construct)


def precision_for(given: str | None, weights: str | None, lora: int | None) -> str:
    """The precision of a plan. A frozen model is held in bfloat16 by default. FSDP casts what it
    gathers, which codes of weights do not survive.

    Raises:
        InputsError: if the weights are quantized and not trained beside adapters, or cast.
    """
    check_trains(weights, lora, trains=True)
    if weights is None:
        return given or ("mixed" if lora is None else "bf16")
    if given not in (None, "bf16"):
        raise InputsError(
            f"precision={given!r} casts what FSDP gathers, and weights={weights!r} are codes: "
            "give bf16"
        )
    return "bf16"


def check_axes(axes: MeshAxes, weights: str | None, lora: int | None) -> None:
    """Refuse axes whose rules name layers that adapters and quantized weights replace.

    Raises:
        InputsError: if the mesh has another axis than those of data parallelism.
    """
    others = (axes.tensor_ranks, axes.pipeline_ranks, axes.context_ranks, axes.expert_ranks)
    if (weights is not None or lora is not None) and max(others) > 1:
        raise InputsError(
            "adapters and quantized weights are planned along dp and replicate: leave the other "
            "axes out of the mesh"
        )


def notes_on(weights: str | None, lora: int | None) -> tuple[str, ...]:
    """What a plan says of quantized weights and adapters."""
    notes = []
    if weights is not None:
        notes.append(f"weights {weights}: {scheme_named(weights).library}; not trained")
    if lora is not None:
        notes.append(f"LoRA adapters of rank {lora} are trained, and nothing else")
    return tuple(notes)
