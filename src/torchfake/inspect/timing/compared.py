"""With which measurements times were compared, by kind of model and GPU, and how far they were off.

Input: a kind of model, a GPU. Output: the error that was seen, as a sentence. Invariant: errors are
those of published runs that were not used to choose an efficiency; docs/time.md has the tables, and
a test compares each figure with them.
"""

from __future__ import annotations

from typing import NamedTuple

from torchfake._core.gpu_profiles import CudaProfile
from torchfake.inspect.timing.hardware import name_of


class Comparison(NamedTuple):
    """Published runs of one kind of model on some GPUs."""

    is_of_tokens: bool  # language models; else models of images
    is_training: bool
    gpus: frozenset[str]  # names of profiles
    half: int  # percent of the published time: half of the estimates were that close
    most: int  # percent: nine in ten were

    @property
    def text(self) -> str:
        """The error as a sentence."""
        return f"median {self.half} %, nine in ten within {self.most} %"


COMPARISONS = (
    Comparison(True, True, frozenset({"a100-40gb", "a100-80gb", "h100-80gb"}), 4, 11),
    Comparison(True, True, frozenset({"l40s-48gb"}), 8, 20),
    Comparison(False, False, frozenset({"rtx3090-24gb", "rtx4090-24gb", "rtx5090-32gb"}), 15, 30),
    Comparison(False, True, frozenset({"rtx3090-24gb"}), 9, 40),
)

PAGE = "docs/time.md"


def error_text(gpu: CudaProfile | None, *, is_of_tokens: bool, is_training: bool) -> str:
    """The error of times of such models on a GPU, or that none was compared with a measurement."""
    kind = "language models" if is_of_tokens else "models of images"
    what = f"{'training' if is_training else 'inference'} of {kind}"
    for each in COMPARISONS:
        is_of_kind = (each.is_of_tokens, each.is_training) == (is_of_tokens, is_training)
        if is_of_kind and gpu is not None and name_of(gpu) in each.gpus:
            return f"on held-out published runs of {kind}: {each.text} ({PAGE})"
    return f"not known: {what} on this GPU was not compared with any measurement ({PAGE})"
