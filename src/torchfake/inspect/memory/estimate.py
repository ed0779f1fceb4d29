"""How much memory a step takes: runs it on fakes, and follows each storage until it is freed.

Input: a module, inputs, options of the step. Output: an :class:`Estimate`, plain data with the
lifetimes of all storages. Invariant: bytes are those that operators request, rounded up only as the
caller requests; scratch memory that a kernel uses while it runs belongs to no storage and is not
counted.

One pass: the arguments are collected (:func:`workload_of`, :func:`step_of`), the step is run
(:func:`run_step`), its allocations are accounted (:func:`account`), and ``show`` draws the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from torchfake._core.gpu_profiles import AlikeGpus, CudaProfile
from torchfake._progress import count, progress
from torchfake.errors import InputsError
from torchfake.inspect.copies.workload import Workload, check_module, workload_of
from torchfake.inspect.inputs.given import (
    Shape,
    inputs_explained,
    inputs_given,
)
from torchfake.inspect.inputs.resizing import BATCH, SEQ, resized, size_of
from torchfake.inspect.memory.estimate_record import Estimate as Estimate
from torchfake.inspect.memory.small_heap import small_heap
from torchfake.inspect.serve import Serve, answers_of
from torchfake.inspect.serving.passes import run_serving
from torchfake.inspect.steps.adapters import with_adapters
from torchfake.inspect.steps.execution import run_step
from torchfake.inspect.steps.program import is_program, run_program, workload_of_program
from torchfake.inspect.steps.quantized import outliers_of, with_weights
from torchfake.inspect.steps.step import (
    Loss,
    Step,
    check_program_options,
    evaluation_of,
    serving_step,
    step_of,
)
from torchfake.inspect.storages.cuda_memory import CUDA_ROUNDING, workspace_bytes
from torchfake.inspect.storages.lifetimes import Lifetimes
from torchfake.inspect.storages.storage_tracker import StorageTracker
from torchfake.inspect.timing.commands import CommandRecorder, recorder_for
from torchfake.observe import Answerer, AnswerFunction, RunningModules


def estimate(
    module: Any,
    *inputs: Any,
    optimizer: Any = None,
    loss: Loss | None = None,
    mode: str | None = None,
    autocast: torch.dtype | str | bool | None = None,
    decode: tuple[int, int] | None = None,
    accumulate: int = 1,
    keep_gradients: bool = False,
    training: Any = None,
    peft: Any = None,
    weights: str | None = None,
    lengths: Sequence[int] | None = None,
    evaluation: int | None = None,
    device: torch.device | str | None = None,
    gpu: str | CudaProfile | AlikeGpus | None = None,
    round_to: int | None = None,
    workspace_bytes: int | None = None,
    allocator: str | None = None,
    answer: str | AnswerFunction | None = None,
    serve: Serve | None = None,
    batch: int | None = None,
    seq: int | None = None,
    input_size: Shape | Sequence[Shape] | None = None,
) -> Estimate:
    """Estimate the memory of a step of `module`, run on fakes: forward, backward, optimizer.

    The step runs on a fake copy; the module is not modified, and needs no weights. As in a plain
    training loop, gradients are freed before the forward pass (``zero_grad()``), and the output is
    held until the end of the step. Gradient checkpointing is used if it is enabled on the module.

    Instead of a module, a function that performs a whole step may be given, with loops, gradient
    accumulation, or several models and optimizers. It is copied together with everything it refers
    to, and the copy is called twice; `peak_bytes` is the peak of the second call.

    Args:
        module: a fake, deferred or real module; or a function, which is called with `inputs`.
        inputs: the arguments of its ``forward``; a single mapping is used as keyword arguments.
            See :func:`example_inputs`.
        optimizer: a name or class of ``torch.optim``, a function of the parameters, or an
            optimizer of the module's parameters; or ``"none"``: a training step without one.
        loss: a function of the output; by default ``output.loss``, or if there is none, the sum of
            the first output tensor that requires gradients.
        mode: ``"training"`` (forward, backward, and the optimizer if given), ``"forward"`` (forward
            only, keeping the autograd graph), or ``"inference"``. The default is training if an
            optimizer or a loss is given, otherwise inference.
        autocast: the dtype of ``torch.autocast`` around the forward pass; True selects the device's
            default.
        decode: ``(prompt, new_tokens)``, two lengths: generation with a KV cache, from the pass
            over the prompt to the last token. Only the batch size of `inputs` is used then.
        accumulate: the number of micro-batches in a step, each with a forward and a backward pass
            before the optimizer runs; `inputs` are for one micro-batch; losses are averaged.
        keep_gradients: set gradients to zero between steps, like ``zero_grad(set_to_none=False)``,
            instead of freeing them.
        training: transformers' ``TrainingArguments``: run the step of its Trainer, with their batch
            size, accumulation, gradient checkpointing, precision, clipping and optimizer. Settings
            that are ignored are listed in ``left_out``.
        peft: a PEFT config, such as ``LoraConfig``: run the module with these adapters.
        weights: quantize the weights first: ``"nf4"`` or ``"bnb-int8"`` (bitsandbytes), ``"int4"``,
            ``"int8"`` or ``"fp8"`` (torchao). The library's layers are run. With `peft`, QLoRA.
        lengths: the sequence lengths of several steps, in order, as padding per batch gives them.
            The result is of the longest; the allocator's model replays all of them, one after the
            other, so ``peak_reserved_bytes`` has the fragmentation that comes from them.
        evaluation: the batch size of a pass of evaluation after the steps, in the memory of
            training; see ``evaluation_peak_bytes``.
        device: the device to run on, such as ``"cuda"``, without a GPU; default: the module's.
        gpu: a profile or its name, see :func:`torchfake.profiles`; implies ``device="cuda"``.
        round_to: round allocations up to a multiple of so many bytes; default: 512 on CUDA, else 1.
        workspace_bytes: the size of the cuBLAS workspaces; by default what the installed torch
            allocates on that GPU.
        allocator: options of CUDA's caching allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``, such as
            ``"expandable_segments:True"``; for ``peak_reserved_bytes``.
        answer: supplies unknown values: ``"typical"`` or a function, as for
            :func:`torchfake.fake_mode`. ``answers`` of the result lists the answers given.
        serve: the serving workload for a transformers model, instead of inputs: see
            :class:`Serve`. The attribute ``cache`` of the result describes the cache.
        batch: instead of inputs: a batch size; :func:`example_inputs` generates the inputs, with
            labels for a training step.
        seq: instead of inputs: the sequence length of generated inputs.
        input_size: instead of inputs: the shape of a tensor, batch first, or a list of shapes.

    Returns:
        The estimate, for the device that holds most of the parameters.

    Raises:
        InputsError: if the options are incompatible with the module or each other.
        DeviceError: if the device or profile does not exist.

    Exceptions that the module raises are not changed; :func:`check` reports where they occur.

    >>> import torch
    >>> from torchfake import fake_mode
    >>> with fake_mode():
    ...     layer = torch.nn.Linear(1024, 1024, bias=False)
    ...     x = torch.empty(16, 1024)
    >>> found = estimate(layer, x, optimizer="adam")
    >>> found.peak.phase, found.peak.by_category["optimizer state"]
    ('optimizer', 8388612)
    """
    does: dict[str, Any] = {
        "mode": mode,
        "optimizer": optimizer,
        "loss": loss,
        "autocast": autocast,
        "decode": decode,
        "accumulate": accumulate,
        "keep_gradients": keep_gradients,
        "training": training,
        "peft": peft,
        "weights": weights,
        "lengths": lengths,
        "evaluation": evaluation,
    }
    if is_program(module):
        check_program_options({**does, "serve": serve})
        workload = workload_of_program(module, inputs, device=device, gpu=gpu, answer=answer)
        does = {}
    else:
        check_module(module, "fit")
        trains = mode == "training" or optimizer is not None or training is not None
        inputs = inputs_given(
            module, inputs, batch=batch, seq=seq, input_size=input_size, labels=trains
        )
        if answer is None:
            answer = answers_of(serve) or outliers_of(weights)
        workload = workload_of(module, inputs, device=device, gpu=gpu, answer=answer)
    step = step_of(
        workload,
        round_to=round_to,
        workspace_bytes=workspace_bytes,
        allocator=allocator,
        **does,
    )
    if serve is not None:
        step = serving_step(serve, step, inputs)
    with inputs_explained(workload, inputs, step):
        return measure(workload if training is None else _of_batch(workload, training), step)


def _of_batch(workload: Workload, training: Any) -> Workload:
    """The workload, with inputs of the batch size that the ``TrainingArguments`` name."""
    size = training.per_device_train_batch_size
    return workload if size_of(workload, BATCH) == size else resized(workload, BATCH, size)


def measure(workload: Workload, step: Step, *, is_timed: bool = True) -> Estimate:
    """Run a step on a fake copy; estimate its memory, and if `is_timed`, its time."""
    gpu = "" if workload.gpu is None else workload.gpu.name
    with progress("Running on fakes"), small_heap():
        count(gpu)
        if workload.program is not None:
            return _measure_program(workload, step)
        found = _measure_lengths(workload, step, is_timed)
        if step.evaluation is None:
            return found
        after = resized(found.subject, BATCH, step.evaluation)
        return replace(found, evaluation=_measure_module(after, evaluation_of(step), False))


def _measure_lengths(workload: Workload, step: Step, is_timed: bool) -> Estimate:
    """The step at each of its lengths, of which the one with the highest peak is returned."""
    if not step.lengths:
        return _measure_module(workload, step, is_timed)
    by_length = {
        length: _measure_module(resized(workload, SEQ, length), step, is_timed)
        for length in dict.fromkeys(step.lengths)
    }
    most = max(by_length.values(), key=lambda each: each.peak_bytes)
    return replace(most, steps=tuple(by_length[length] for length in step.lengths))


def _measure_module(workload: Workload, step: Step, is_timed: bool) -> Estimate:
    fake_copy = workload.fake_copy(step.loss)
    _check_products(fake_copy.module)
    if step.weights is not None:
        fake_copy = with_weights(fake_copy, step.weights)
    if step.peft is not None:
        fake_copy = with_adapters(fake_copy, step.peft)
    modules = RunningModules(fake_copy.module)
    make = partial(StorageTracker, modules, has_workspace=step.workspace_bytes is not None)
    first = make() if step.keep_gradients else None
    cache = None
    with fake_copy.mode():
        device = fake_copy.device
        tracker = make(recorder_for(device) if is_timed else None)
        if step.serve is None:
            run_step(replace(step, loss=fake_copy.loss), fake_copy, tracker, first)
        else:
            cache = run_serving(step, fake_copy, tracker)
    found = account(
        tracker.finish(),
        tracker.ops,
        first=None if first is None else first.finish(),
        class_name=type(workload.module).__name__,
        device=device,
        workload=workload,
        step=replace(step, made=tracker.optimizer),
        answerer=fake_copy.answerer,
        commands=tracker.commands,
        loss=tracker.loss,
    )
    return found if cache is None else replace(found, cache=cache)


def _check_products(module: nn.Module) -> None:
    """Refuse weights in a dtype that CUDA's matrix products have no kernel for.

    Raises:
        InputsError: if a plain linear layer on CUDA has 8-bit floating point weights.
    """
    for name, child in module.named_modules():
        if type(child) is nn.Linear and child.weight.device.type == "cuda":
            dtype = child.weight.dtype
            if dtype.is_floating_point and dtype.itemsize < 2:
                raise InputsError(
                    f"{name or 'the layer'} has weights cast to {dtype}: no kernel multiplies them "
                    "as they are; torchfake.inspect.weights(model, 'fp8') gives the size of "
                    "quantized weights"
                )


def _measure_program(workload: Workload, step: Step) -> Estimate:
    answerer = Answerer(workload.answer)
    run = run_program(workload, answerer, has_workspace=step.workspace_bytes is not None)
    return account(
        run.later,
        run.ops,
        first=run.first,
        class_name=run.name,
        device=run.device,
        workload=workload,
        step=replace(step, mode=run.mode),
        answerer=answerer,
        commands=run.commands,
    )


def account(
    lives: Lifetimes,
    ops: Iterable[Any],
    *,
    first: Lifetimes | None = None,
    class_name: str,
    device: torch.device,
    workload: Workload,
    step: Step,
    answerer: Answerer,
    commands: CommandRecorder | None,
    loss: str | None = None,
) -> Estimate:
    """The estimate of a step that was run.

    Args:
        lives: the lifetimes of the storages on all devices.
        ops: all operators that ran.
        first: the lifetimes in the first step, if later steps differ from it.
        class_name: the name of the module's class.
        device: the device that the estimate is for; of other devices only the peaks are kept.
        workload: the module and inputs that were run.
        step: the options of the step.
        answerer: lists the answers given to questions about unknown values.
        commands: the recorder of the commands that the step put on streams.
        loss: what the backward pass began with, as text.
    """
    profile = workload.profile if device.type == "cuda" else None
    return Estimate(
        class_name=class_name,
        mode=step.mode,
        device=str(device),
        gpu=profile,
        round_to=step.round_to or (CUDA_ROUNDING if profile else 1),
        workspace_bytes=workspace_bytes(profile, ops, is_training=step.mode == "training")
        if step.workspace_bytes is None
        else step.workspace_bytes,
        elsewhere=_peaks_elsewhere(lives, str(device)),
        lives=lives.rows(lives.on_device(device)),
        subject=workload,
        step=step,
        answers=tuple(answerer.answers),
        first_lives=None if first is None else first.rows(first.on_device(device)),
        commands=() if commands is None else tuple(commands.commands),
        loss=loss,
    )


def _peaks_elsewhere(lives: Lifetimes, device: str) -> dict[str, int]:
    """The peaks on other devices, in bytes."""
    peaks: dict[str, int] = {}
    for name in sorted({*lives.device} - {device}):
        there = lives.rows(lives.on_device(name))
        peaks[name] = int(there.held_bytes(there.allocated_at, there.num_bytes).max(initial=0))
    return peaks
