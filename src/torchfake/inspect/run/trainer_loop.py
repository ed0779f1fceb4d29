"""The training loop of transformers' Trainer, from its arguments.

Input: a fake copy, ``TrainingArguments``, a storage tracker. Output: the tracker has recorded one
iteration: the passes of all micro-batches, clipping, the optimizer. Invariant: what the Trainer
holds is held: the batches of all micro-batches, no output behind its loss, gradients until the
optimizer has run; what it makes the optimizer of is what it makes it of itself.

The order is that of ``_run_epoch`` and ``training_step`` in transformers/trainer.py (5.23), that of
the forward pass and of clipping accelerate's (1.15). No Trainer is made: that would seed torch, and
make folders and process groups.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchfake._torch import backends
from torchfake._torch.contexts import Restoring, Together
from torchfake.errors import InputsError
from torchfake.inspect.run.backward import check_loss, run_backward
from torchfake.inspect.run.module_tensors import ModuleTensors, Named, tables_of
from torchfake.inspect.run.optimizers import made_optimizer
from torchfake.inspect.run.storage_tracker import StorageTracker
from torchfake.inspect.run.training_arguments import autocast_dtype, checkpointing_of, shown
from torchfake.inspect.run.workload import FakeCopy, tensors_in


class TrainerLoop:
    """A Trainer's loop on a fake copy, an iteration at a time. Made in the copy's mode."""

    def __init__(self, args: Any, fake_copy: FakeCopy) -> None:
        self._args, self._model = args, fake_copy.module
        if fake_copy.args:
            raise InputsError("training=: a Trainer passes inputs by name, so give a mapping")
        self._device = next(self._model.parameters()).device
        self._batches = _batches(fake_copy.kwargs, args.gradient_accumulation_steps)
        _prepare_model(self._model, args)
        self._optimizer = made_optimizer(
            lambda: _optimizer_of(self._model, args), self._model, f"optim={shown(args.optim)}"
        )
        self._scaler = _scaler(args, self._device)
        self._loss_of = _Loss(self._model, args, self._autocast)
        self._tensors = ModuleTensors(self._model)
        for _, parameter in self._tensors.parameters:
            parameter.grad = None
        # numbers that are kept: the sum of losses, and of the step before loss and gradient norm
        self._logged, self._last_loss, self._norm = (
            torch.zeros((), device=self._device) for _ in range(3)
        )

    def run(self, tracker: StorageTracker) -> None:
        """One iteration."""
        self._register(tracker)
        with tracker.active():
            tracker.begin_phase("forward")
            num_items = self._loss_of.num_items(self._batches)
            for batch in self._batches:
                self._micro_step(tracker, batch, num_items)
            tracker.begin_phase("optimizer")
            self._update()
            tracker.recategorize(self._state(), "optimizer state")
            self._model.zero_grad()
            tracker.end_step()

    def _register(self, tracker: StorageTracker) -> None:
        self._tensors.register(tracker)
        held = tensors_in((self._batches, self._logged, self._last_loss, self._norm))
        tracker.register((("", tensor) for tensor in held), "inputs")
        tracker.register(self._state(), "optimizer state")
        tracker.register(tables_of(self._optimizer), "optimizer state")

    def _state(self) -> Named:
        scaling = [] if self._scaler is None else tensors_in(vars(self._scaler))
        return [*self._tensors.optimizer_state(self._optimizer), *(("", t) for t in scaling)]

    def _micro_step(self, tracker: StorageTracker, batch: dict[str, Any], num_items: Any) -> None:
        """``training_step``: the output is freed before the backward pass."""
        tracker.begin_phase("forward")
        loss = self._loss_of(batch, num_items)
        check_loss(loss)
        tracker.end_forward()
        tracker.begin_phase("backward")
        self._go_backward(loss)
        tracker.recategorize(self._tensors.gradients(), "gradients")
        self._last_loss = loss.detach()
        self._logged += self._last_loss

    def _go_backward(self, loss: torch.Tensor) -> None:
        """``Accelerator.backward``: it divides by its own number of steps, which is 1."""
        loss = loss / 1
        run_backward(loss if self._scaler is None else self._scaler.scale(loss))

    def _update(self) -> None:
        """Clip, which measures the gradients at least; then the optimizer."""
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        most = self._args.max_grad_norm or float("inf")
        self._norm = nn.utils.clip_grad_norm_(self._model.parameters(), most)
        self._optimizer.step()  # a scaler asks whether gradients are finite: they are
        if self._scaler is not None:
            self._scaler.update()

    def _autocast(self) -> Restoring:
        dtype = autocast_dtype(self._args)
        return Together() if dtype is None else backends.autocast(self._device.type, dtype)


class _Loss:
    """What a Trainer computes of a batch: the model's loss, or that of label smoothing."""

    def __init__(self, model: nn.Module, args: Any, autocast: Callable[[], Restoring]) -> None:
        self._model, self._args = model, args
        adapted: Any = model
        base = adapted.get_base_model() if hasattr(model, "get_base_model") else model
        self._name = type(base).__name__
        takes_more = any(
            p.kind is p.VAR_KEYWORD for p in inspect.signature(base.forward).parameters.values()
        )
        self._takes_num_items = getattr(base, "accepts_loss_kwargs", takes_more)
        self._stays_integer = _count_stays_integer()
        if autocast_dtype(args) is not None:
            _cast_forward(model, autocast)

    def num_items(self, batches: list[dict[str, Any]]) -> torch.Tensor | None:
        """How many labels there are in all micro-batches, for models that divide by it."""
        if not self._takes_num_items or not torch.is_tensor(batches[0].get("labels")):
            return None
        counted: Any = sum(batch["labels"].ne(-100).sum() for batch in batches)
        found: torch.Tensor = counted // 1 if self._stays_integer else counted / 1
        return found

    def __call__(self, batch: dict[str, Any], num_items: torch.Tensor | None) -> torch.Tensor:
        inputs = dict(batch)
        smooths = bool(self._args.label_smoothing_factor) and "labels" in inputs
        labels = inputs.pop("labels") if smooths else None
        if num_items is not None:
            inputs["num_items_in_batch"] = num_items
        outputs = self._model(**inputs)
        loss = self._smoothed(outputs, labels, num_items) if smooths else _loss_in(outputs)
        is_scaled = self._takes_num_items and num_items is not None
        return loss if is_scaled else loss / self._args.gradient_accumulation_steps

    def _smoothed(self, outputs: Any, labels: Any, num_items: Any) -> torch.Tensor:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        from transformers.trainer_pt_utils import LabelSmoother

        smoother = LabelSmoother(epsilon=self._args.label_smoothing_factor)
        shifts = self._name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        options = {"shift_labels": True} if shifts else {}
        given = inspect.signature(smoother.__call__).parameters
        if "num_items_in_batch" in given:
            options["num_items_in_batch"] = num_items
        found: torch.Tensor = smoother(outputs, labels, **options)
        return found


def _count_stays_integer() -> bool:
    """Whether this transformers' Trainer divides the number of labels with ``//``, as 5.20 does:
    an int64 is held, where ``/``, as in 5.23, holds a float32. The Trainer's own method answers,
    for one process and one label.
    """
    from transformers import Trainer

    alone = SimpleNamespace(
        model_accepts_loss_kwargs=True,
        compute_loss_func=None,
        _loss_shifts_labels=False,
        args=SimpleNamespace(average_tokens_across_devices=False, n_gpu=1, world_size=1),
        get_tp_size=lambda: 1,
        get_cp_size=lambda: 1,
        get_sp_size=lambda: 1,
    )
    method: Any = Trainer._get_num_items_in_batch
    label = torch.zeros(1, dtype=torch.int64)
    try:
        found = method(alone, [{"labels": label}], label.device)
    except AttributeError:  # a Trainer that asks for something else: a newer one, which uses `/`
        return False
    return isinstance(found, torch.Tensor) and not found.is_floating_point()


def _loss_in(outputs: Any) -> torch.Tensor:
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs[0]
    if not isinstance(loss, torch.Tensor):
        raise InputsError(
            "the model returned no loss, which a Trainer requires: add labels to the inputs, such "
            "as "
            "example_inputs(model, labels=True)"
        )
    return loss


def _cast_forward(model: nn.Module, autocast: Callable[[], Restoring]) -> None:
    """Autocast inside of ``forward``, and outputs in float32, as accelerate prepares a model."""
    from accelerate.utils import convert_outputs_to_fp32

    forward = model.forward

    def cast(*args: Any, **kwargs: Any) -> Any:
        with autocast():
            return forward(*args, **kwargs)

    model.forward = convert_outputs_to_fp32(cast)


def _batches(inputs: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """A batch for each micro-batch: all are on the device before the first is used."""

    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value

    others = ({name: copied(value) for name, value in inputs.items()} for _ in range(number - 1))
    return [dict(inputs), *others]


def _prepare_model(model: Any, args: Any) -> None:
    """What a Trainer does with the model before the first step."""
    if getattr(model, "config", None) is not None and hasattr(args, "use_cache"):
        model.config.use_cache = args.use_cache
    options = checkpointing_of(args)
    if options is not None:
        enable = getattr(model, "activation_checkpointing_enable", None)
        if enable is not None:
            enable(**{"activation_checkpointing_kwargs": options.pop("kwargs"), **options})
        else:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options["kwargs"])
    if args.neftune_noise_alpha is not None:
        from transformers.integrations.neftune import activate_neftune

        activate: Any = activate_neftune
        activate(model, args.neftune_noise_alpha)
    model.train()


def _optimizer_of(model: nn.Module, args: Any) -> Optimizer:
    """As the Trainer makes it: with its parameter groups."""
    from transformers import Trainer

    maker: Any = object.__new__(Trainer)
    maker.args, maker.model = args, model
    maker.optimizer = maker.optimizer_cls_and_kwargs = None
    made = maker.create_optimizer()
    return made if isinstance(made, Optimizer) else maker.optimizer


def _scaler(args: Any, device: torch.device) -> Any:
    if not args.fp16:
        return None
    if device.type == "cpu":
        raise InputsError("fp16=True: a Trainer asks for a GPU then: give gpu= or device='cuda'")
    return torch.amp.GradScaler(device.type)
