"""With which measurements times were compared, by kind of model and GPU, and how far they were off.

Input: the inputs of a model, a GPU. Output: the error that was seen, as a sentence. Invariant:
errors are those of published runs that were not used to choose an efficiency; docs/time.md has the
tables, and a test compares each figure with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.timing.hardware import name_of

LANGUAGE, IMAGES, OTHERS = "language models", "models of images", "models with such inputs"
MIXTURES, ON_SUCH_NETWORKS = "mixtures of experts", "models on such a network"
"""The kinds of models."""


class Comparison(NamedTuple):
    """Published runs of one kind of model on some GPUs."""

    kind: str  # of model
    is_training: bool
    gpus: frozenset[str]  # names of profiles
    half: int  # percent of the published time: half of the estimates were that close
    most: int  # percent: nine in ten were

    @property
    def text(self) -> str:
        """The error as a sentence."""
        return f"median {self.half} %, nine in ten within {self.most} %"


_V100 = ("v100-16gb", "v100-32gb")

COMPARISONS = (
    Comparison(LANGUAGE, True, frozenset({"a100-40gb", "a100-80gb", "h100-80gb"}), 4, 11),
    Comparison(LANGUAGE, True, frozenset({"l40s-48gb"}), 4, 16),
    Comparison(IMAGES, False, frozenset({"rtx3090-24gb", "rtx4090-24gb", "rtx5090-32gb"}), 11, 25),
    Comparison(IMAGES, True, frozenset({"rtx3090-24gb"}), 9, 40),
    Comparison(IMAGES, False, frozenset({"a100-80gb", *_V100, "t4-16gb"}), 24, 39),
    Comparison(IMAGES, True, frozenset({"a100-80gb", *_V100}), 16, 28),
)

PAGE = "docs/time.md"

BY_LAUNCHES = "bound by launches: 0.67 to 1.5 times that"
"""The error of times that the host bounds: hosts differ by so much."""


def kind_of_model(inputs: Iterable[torch.Tensor]) -> str:
    """The kind of a model that takes such inputs: only tokens [batch, seq], only images [batch,
    channels, height, width], or others.
    """
    each = [*inputs]
    has_tokens = any(tensor.dim() == 2 and not tensor.is_floating_point() for tensor in each)
    signals = {tensor.dim() for tensor in each if tensor.dim() > 2 and tensor.is_floating_point()}
    if has_tokens and not signals:
        return LANGUAGE
    return IMAGES if signals == {4} and not has_tokens else OTHERS


def error_text(
    gpu: CudaProfile | None, kind: str, *, is_training: bool, is_bound_by_launches: bool = False
) -> str:
    """The error of times of such models on a GPU, or that none was compared with a measurement."""
    if is_bound_by_launches:
        return f"{BY_LAUNCHES}, as the host is fast or slow ({PAGE})"
    found = _comparison(gpu, kind, is_training=is_training)
    if found is not None:
        return f"on held-out published runs of {kind}: {found.text} ({PAGE})"
    what = f"{'training' if is_training else 'inference'} of {kind}"
    return f"not known: {what} on this GPU was not compared with any measurement ({PAGE})"


def error_in_short(
    gpu: CudaProfile | None, kind: str, *, is_training: bool, is_bound_by_launches: bool = False
) -> str:
    """The median error of such times: ``median error 4 %``, or ``error not known``."""
    if is_bound_by_launches:
        return BY_LAUNCHES
    found = _comparison(gpu, kind, is_training=is_training)
    return "error not known" if found is None else f"median error {found.half} %"


def _comparison(gpu: CudaProfile | None, kind: str, *, is_training: bool) -> Comparison | None:
    name = None if gpu is None else name_of(gpu)
    for each in COMPARISONS:
        if (each.kind, each.is_training) == (kind, is_training) and name in each.gpus:
            return each
    return None
