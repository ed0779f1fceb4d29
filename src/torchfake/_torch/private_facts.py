"""Assumptions about torch's internals (private facts), each with a check.

Input: a fact, its check, and what torchfake does without the fact. Output: whether torchfake may
rely on the fact. Invariant: a check runs once, at the first use; on a torch that was never tried, a
fact that only saves time is not relied on, and any other only if its check passes.

The versions from the oldest supported to the newest that the suite was run on count as tried
(``_torch/versions``), and a version that the user accepts. ``tests/_torch/test_private_facts.py``
tests whether the facts hold on the installed torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from torchfake._torch import versions

ALL: list[PrivateFact] = []
"""Every fact, in the order in which the files that use the facts are imported."""


class PrivateFact:
    """An undocumented property of torch, which may change with any version.

    Args:
        name: the property, as a sentence.
        used_in: the file of torchfake that relies on the fact.
        without: what torchfake does if the fact does not hold, as a sentence.
        is_shortcut: whether torchfake only loses time without the fact.
        check: returns whether the fact holds. An error counts as False.
    """

    def __init__(
        self, name: str, *, used_in: str, without: str, is_shortcut: bool, check: Callable[[], bool]
    ) -> None:
        self.name, self.used_in, self.without = name, used_in, without
        self.is_shortcut, self.check = is_shortcut, check
        self._is_relied_on: bool | None = None
        ALL.append(self)

    def holds(self) -> bool:
        """Whether torchfake relies on the fact in this process. A failed check warns."""
        if self._is_relied_on is None:
            may_be = versions.is_tried() or not self.is_shortcut
            self._is_relied_on = may_be and self._passes()
        return self._is_relied_on

    def require(self) -> None:
        """Raise an error if the fact does not hold.

        Raises:
            RuntimeError: naming the fact.
        """
        if not self.holds():
            raise RuntimeError(self._failure())

    def _passes(self) -> bool:
        try:
            passes = self.check()
        except RecursionError:  # of the program: the next call asks again
            raise
        except Exception:
            passes = False
        if not passes:
            warnings.warn(self._failure(), versions.UncheckedTorchWarning, stacklevel=3)
        return passes

    def _failure(self) -> str:
        return (
            f"torch {torch.__version__} has changed what torchfake relies on in {self.used_in}: "
            f"{self.name}. {self.without}. Look for a newer torchfake"
        )
