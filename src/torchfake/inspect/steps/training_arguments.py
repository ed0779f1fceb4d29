"""The settings of transformers' ``TrainingArguments`` that concern a step.

Input: an object with the attributes of ``TrainingArguments``. Output: the autocast dtype, options
of checkpointing, a line for each setting that an estimate does not follow. Invariant: a setting
that changes the memory of a step is followed, listed or refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchfake.errors import InputsError

_NEEDED = ("per_device_train_batch_size", "gradient_accumulation_steps", "optim", "max_grad_norm")


def check_training_arguments(args: Any) -> None:
    """Refuse objects that are not ``TrainingArguments``, and settings for several devices.

    Raises:
        InputsError: if `args` is refused.
    """
    missing = [name for name in _NEEDED if not hasattr(args, name)]
    if missing or isinstance(args, type):
        raise InputsError(
            f"training= is a {type(args).__name__}: give transformers' TrainingArguments"
        )
    for name in ("deepspeed", "fsdp", "parallelism_config"):
        if getattr(args, name, None):
            raise InputsError(
                f"training= has {name}={getattr(args, name)!r:.60}, for several devices: "
                "torchfake.plan has the memory of each rank"
            )


def autocast_dtype(args: Any) -> torch.dtype | None:
    """The autocast dtype; None without autocast."""
    return torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None


def checkpointing_of(args: Any) -> dict[str, Any] | None:
    """The arguments of ``activation_checkpointing_enable``; None without checkpointing."""
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if getattr(args, name, None):
            kwargs = dict(getattr(args, f"{name}_kwargs", None) or {})
            own = {key: kwargs.pop(key) for key in ("every_n_layers", "offload") if key in kwargs}
            return {"kwargs": kwargs or None, **own}
    return None


def settings_left_out(args: Any, device: str) -> Iterator[str]:
    """One line for each setting that an estimate does not follow."""
    name = type(args).__name__
    if not type(args).__module__.startswith("transformers."):
        yield f"{name}: the step is that of transformers' Trainer; what {name} adds is not followed"
    optim = shown(args.optim)
    if "paged" in optim:
        yield f"optim={optim}: its state is counted whole; CUDA may move it to the host"
    if optim in ("adamw_torch_4bit", "adamw_torch_8bit"):
        yield f"optim={optim}: run as eager; torchao compiles its step"
    for name, effect in _LEFT_OUT.items():
        value = getattr(args, name, None)
        if value and value != [] and str(value) not in ("no", "IntervalStrategy.NO"):
            yield f"{name}={shown(value)}: {effect}"
    if getattr(args, "use_cpu", False) and device != "cpu":
        yield f"use_cpu=True: the step runs on {device}, as requested"
    if getattr(args, "n_gpu", 1) > 1:
        yield f"n_gpu={args.n_gpu}: nn.DataParallel, whose replicas are not run"


_LEFT_OUT = {
    "torch_compile": "the step is run as eager",
    "use_liger_kernel": "the model is run with its own layers",
    "torch_empty_cache_steps": "the allocator keeps its cache",
    "auto_find_batch_size": "the batch is per_device_train_batch_size",
    "full_determinism": "the workspace of cuBLAS is torch's default",
    "debug": "the step is run without",
    "eval_strategy": "evaluation is not part of the step",
    "resume_from_checkpoint": "reading a checkpoint is not part of the step",
}


def shown(value: Any) -> str:
    """A setting as its user writes it, at most 60 characters."""
    return str(getattr(value, "value", value))[:60]
