"""The training loop of transformers' Trainer, from its arguments.

Input: a fake copy, ``TrainingArguments``, a storage tracker. Output: the tracker has recorded one
iteration: the passes of all micro-batches, clipping, the optimizer. Invariant: the loop holds what
the Trainer holds: the batches of all micro-batches, each output until its loss is computed, the
gradients until the optimizer has run. Trainer's own method creates the optimizer.

The order follows ``_run_epoch`` and ``training_step`` in transformers/trainer.py (5.23); forward
pass and clipping follow accelerate (1.15). No Trainer is created, because its constructor seeds
torch, and creates folders and process groups.
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
from torchfake.inspect.copies.workload import FakeCopy, tensors_in
from torchfake.inspect.steps.backward import check_loss, run_backward
from torchfake.inspect.steps.module_tensors import gradients_of, register_all, state_of, tables_of
from torchfake.inspect.steps.optimizers import made_optimizer
from torchfake.inspect.steps.training_arguments import autocast_dtype, checkpointing_of, shown
from torchfake.inspect.storages.storage_tracker import StorageTracker


class TrainerLoop:
    """The Trainer's loop on a fake copy, one iteration at a time. Created in the copy's mode."""

    def __init__(self, args: Any, fake_copy: FakeCopy) -> None:
        self._args, self._model = args, fake_copy.module
        if fake_copy.args:
            raise InputsError("training=: a Trainer passes inputs by name, so give a mapping")
        self._device = next(self._model.parameters()).device
        self._batches = _batches(fake_copy.kwargs, args.gradient_accumulation_steps)
        _prepare_model(self._model, args)
        self._optimizer = made_optimizer(
            lambda _: _optimizer_of(self._model, args), self._model, f"optim={shown(args.optim)}"
        )
        self._scaler = _scaler(args, self._device)
        self._loss_of = _Loss(self._model, args, self._autocast)
        for parameter in self._model.parameters():
            parameter.grad = None
        # scalars that the Trainer keeps: the sum of losses, the last loss, the last gradient norm
        self._logged, self._last_loss, self._norm = (
            torch.zeros((), device=self._device) for _ in range(3)
        )

    def run(self, tracker: StorageTracker) -> None:
        """Run one iteration, recorded by the tracker."""
        self._register(tracker)
        with tracker.active():
            tracker.phase = "forward"
            num_items = self._loss_of.num_items(self._batches)
            for batch in self._batches:
                self._micro_step(tracker, batch, num_items)
            tracker.phase = "optimizer"
            self._update()
            tracker.recategorize(self._state(), "optimizer state")
            self._model.zero_grad()
            tracker.end_step()

    def _register(self, tracker: StorageTracker) -> None:
        register_all(self._model, tracker)
        held = tensors_in((self._batches, self._logged, self._last_loss, self._norm))
        tracker.register((("", tensor) for tensor in held), "inputs")
        tracker.register(self._state(), "optimizer state")
        tracker.register(tables_of(self._optimizer), "optimizer state")

    def _state(self) -> list[tuple[str, torch.Tensor]]:
        scaling = [] if self._scaler is None else tensors_in(vars(self._scaler))
        return [*state_of(self._optimizer, self._model), *(("", t) for t in scaling)]

    def _micro_step(self, tracker: StorageTracker, batch: dict[str, Any], num_items: Any) -> None:
        """Run ``training_step``, which frees the output before the backward pass."""
        tracker.phase = "forward"
        loss = self._loss_of(batch, num_items)
        check_loss(loss)
        tracker.end_forward()
        tracker.phase = "backward"
        self._go_backward(loss)
        tracker.recategorize(gradients_of(self._model), "gradients")
        self._last_loss = loss.detach()
        self._logged += self._last_loss

    def _go_backward(self, loss: torch.Tensor) -> None:
        """Run ``Accelerator.backward``, which divides by its own number of steps, 1."""
        loss = loss / 1
        run_backward(loss if self._scaler is None else self._scaler.scale(loss))

    def _update(self) -> None:
        """Clip the gradients, or at least compute their norm; then run the optimizer."""
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        most = self._args.max_grad_norm or float("inf")
        self._norm = nn.utils.clip_grad_norm_(self._model.parameters(), most)
        self._optimizer.step()  # a scaler would skip it if a gradient were not finite
        if self._scaler is not None:
            self._scaler.update()

    def _autocast(self) -> Restoring:
        dtype = autocast_dtype(self._args)
        return Together() if dtype is None else backends.autocast(self._device.type, dtype)


class _Loss:
    """The loss that a Trainer computes for a batch: the model's, or that of label smoothing."""

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
        """The number of labels in all micro-batches; None if the model does not divide by it."""
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
    """Whether the installed Trainer divides the number of labels with ``//``, as in 5.20, and holds
    an int64; with ``/``, as in 5.23, it holds a float32. To find out, its own method is called, for
    one process and one label.
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
    except AttributeError:  # a newer Trainer, which reads other attributes and uses `/`
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
    """Have ``forward`` run under autocast and return float32, as accelerate prepares a model."""
    from accelerate.utils import convert_outputs_to_fp32

    forward = model.forward

    def cast(*args: Any, **kwargs: Any) -> Any:
        with autocast():
            return forward(*args, **kwargs)

    model.forward = convert_outputs_to_fp32(cast)


def _batches(inputs: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """One batch for each micro-batch, all on the device before the first is used."""

    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value

    others = ({name: copied(value) for name, value in inputs.items()} for _ in range(number - 1))
    return [dict(inputs), *others]


def _prepare_model(model: Any, args: Any) -> None:
    """Prepare the model as a Trainer does before the first step."""
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
    """The optimizer that the Trainer creates, with its parameter groups."""
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
