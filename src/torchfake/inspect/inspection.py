"""All that is told about a target: what it is, what building it cost, and whether it fits.

Enters: a TARGET and options, as text. Leaves: an Inspection, plain data.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchfake._cuda import CudaProfile
from torchfake.errors import InputsError, TorchFakeError
from torchfake.inspect.build import Built, build, device_named, dtype_named
from torchfake.inspect.check import check
from torchfake.inspect.fit import Fits, fit
from torchfake.inspect.inputs import example_inputs
from torchfake.inspect.memory import Estimate, estimate
from torchfake.inspect.overrides import one_line
from torchfake.inspect.shown import Shown
from torchfake.inspect.summary import Summary, summary
from torchfake.inspect.targets import resolve
from torchfake.inspect.tree import ModuleNode


@dataclass(frozen=True, repr=False)
class Inspection(Shown):
    """What a target is, and what building it cost."""

    target: str  # as the user wrote it
    summary: Summary
    resolve_seconds: float  # importing and finding the target
    build_seconds: float  # building the model and reading its tree
    peak_rss_bytes: int | None  # of the process; None where the platform does not say
    peak_rss_increase_bytes: int | None  # by how much building raised it
    notes: tuple[str, ...] = ()
    estimate: Estimate | None = None  # where a batch was asked for
    fits: Fits | None = None  # where GPUs were

    @property
    def tree(self) -> ModuleNode:
        """The model's tree."""
        return self.summary.tree

    @property
    def memory(self) -> Fits | Estimate | None:
        """What is known of its memory: fits have the estimate they are of."""
        return self.fits if self.fits is not None else self.estimate

    @property
    def by_device(self) -> dict[str, tuple[int, int]]:
        """Values and bytes of parameters and buffers by device, the largest first."""
        return self.summary.by_device

    def to_dict(self, *, depth: int | None = None) -> dict[str, Any]:
        """Everything, ready for JSON; the tree cut `depth` levels down."""
        found = {
            "target": self.target,
            **self.summary.to_dict(depth=depth),
            "resolve_seconds": self.resolve_seconds,
            "build_seconds": self.build_seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
            "peak_rss_increase_bytes": self.peak_rss_increase_bytes,
            "notes": list(self.notes),
        }
        if self.estimate is not None:
            found["estimate"] = self.estimate.to_dict()
        if self.fits is not None:
            found["fits"] = [fit.to_dict() for fit in self.fits]
        return found


@dataclass(frozen=True)
class Question:
    """What is to be found out of a target, beside what it is."""

    batch: int | None = None  # run it, on so many inputs
    seq: int | None = None  # of so many tokens
    train: bool = False  # a training step, not inference
    optimizer: str | None = None  # of that
    autocast: str | None = None  # the dtype of torch.autocast
    decode: tuple[int, int] | None = None  # tokens in the prompt, and new ones
    gpus: tuple[str | CudaProfile, ...] | None = None  # whether it fits there; () for all
    vary: str | None = None  # find the largest "batch" or "seq" that fits there

    @property
    def runs(self) -> bool:
        """Whether the model has to be run for it."""
        asked = (self.batch, self.seq, self.optimizer, self.autocast, self.decode, self.gpus)
        return self.train or any(answer is not None for answer in asked)


def inspect_target(
    text: str,
    *,
    overrides: Sequence[str] = (),
    dtype: str | None = None,
    device: str = "cpu",
    question: Question = Question(),
) -> Inspection:
    """Build what a TARGET names, without its weights, and describe it.

    Args:
        text: a TARGET, see :func:`torchfake.inspect.resolve`.
        overrides: ``key=value`` each, for its config or arguments.
        dtype: the floating point dtype to build in, by name.
        device: the device to build on, by name; no GPU is needed.
        question: what else is to be found out; that takes a model of transformers.

    Raises:
        TargetError: if the target, an override or the dtype is not understood, or building fails.
        InputsError: if inputs for it cannot be made up.
        CheckError: if it does not run on them.
        DeviceError: if fakes cannot be on `device`.
        MissingExtraError: if transformers is needed and not installed.

    >>> linear = inspect_target("torch.nn:Linear", overrides=["in_features=3", "out_features=4"])
    >>> linear.tree.size.num_parameters, linear.by_device
    (16, {'cpu': (16, 64)})
    """
    on, of = device_named(device), None if dtype is None else dtype_named(dtype)
    start = time.perf_counter()
    target = resolve(text, overrides=overrides)
    resolved = time.perf_counter()
    built = build(target, dtype=of, device=on)
    answers = _answers(built, question) if question.runs else {"summary": summary(built.module)}
    return Inspection(
        target=text,
        resolve_seconds=resolved - start,
        build_seconds=built.seconds,
        peak_rss_bytes=built.peak_rss_bytes,
        peak_rss_increase_bytes=built.peak_rss_increase_bytes,
        notes=target.notes,
        **answers,
    )


def _answers(built: Built, question: Question) -> dict[str, Any]:
    module, trains = built.module, question.train or question.optimizer is not None
    inputs = example_inputs(module, batch=question.batch or 1, seq=question.seq, labels=trains)
    gpus = question.gpus
    check(module, inputs)
    try:
        found = estimate(
            module,
            inputs,
            optimizer=question.optimizer,
            mode="training" if trains else None,
            autocast=question.autocast,
            decode=question.decode,
            gpu=gpus[0] if gpus else None,
        )
    except TorchFakeError:
        raise
    except Exception as error:  # of the backward pass, or the optimizer
        raise InputsError(f"the step does not run: {one_line(error)}") from error
    return {
        "summary": summary(module, inputs),
        "estimate": found,
        "fits": None if gpus is None else fit(found, *gpus, vary=question.vary),
    }
