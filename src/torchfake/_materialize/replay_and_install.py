"""Deferred fakes replayed, and exchanged with real tensors as soon as their storage is real.

Input: deferred fakes by name, which have been checked. Output: the same objects, real. Invariant:
each fake is either still deferred or wholly real, whatever interrupts the replay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchfake._core import memory
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import Contents
from torchfake._materialize.dematerialize import remember_source
from torchfake._materialize.install import install
from torchfake._replay import replay
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import autograd, dispatcher
from torchfake.errors import ReplayError


def replay_and_install(
    fakes: Iterable[tuple[str, FakeTensor]],
    *,
    device: torch.device | None = None,
    keep: bool = False,
    advance: Callable[[int], Any] | None = None,
    num_threads: int | None = None,
) -> None:
    """Replay `fakes`, and exchange each with a real tensor as soon as its storage is real.

    Args:
        fakes: by name, checked before. Tensors that are already real are skipped.
        device: where to materialize; None: where the fakes were recorded.
        keep: keep intermediate results for later replays.
        advance: called with the number of bytes of each tensor.
        num_threads: threads that compute values; None: ``torch.get_num_threads()``.

    Raises:
        ReplayError: if a recorded operation cannot be replayed; it says which tensors are real.
    """
    groups: dict[DeferredState, list[tuple[str, FakeTensor]]] = {}
    with dispatcher.as_eager():
        found: set[int] = set()  # an LSTM has its weights twice
        for name, fake in fakes:
            if is_deferred_fake(fake) and id(fake) not in found:
                found.add(id(fake))
                recorded: Any = fake._fake_storage.deferred
                groups.setdefault(recorded, []).append((name, fake))
        if groups:
            _Run(groups, device, advance).run(keep, num_threads)


class _Run:
    """One materialization: the fakes that wait for each storage."""

    def __init__(
        self,
        groups: dict[DeferredState, list[tuple[str, FakeTensor]]],
        device: torch.device | None,
        advance: Callable[[int], Any] | None,
    ) -> None:
        self.groups = groups
        self.device = device
        self.advance = advance
        self.num_tensors = sum(map(len, groups.values()))
        self.num_real = 0
        self.waiting: dict[Contents, list[DeferredState]] = {}

    def run(self, keep: bool, num_threads: int | None) -> None:
        for recorded in list(self.groups):
            if recorded.real is not None:
                self._install(recorded)
            else:
                self.waiting.setdefault(recorded.contents, []).append(recorded)
        try:
            replay.replay(self.waiting, self._finish, cache_all=keep, num_threads=num_threads)
        except Exception as error:
            if self.num_real:
                _add_note(error, self._progress())
            raise

    def _progress(self) -> str:
        left = [name for group in self.groups.values() for name, _ in group]
        return (
            f"{self.num_real} of {self.num_tensors} tensors are materialized and stay so; "
            f"{_named(left)} are still deferred. Materialize again to continue"
        )

    def _finish(self, contents: Contents, storage: torch.UntypedStorage) -> None:
        for recorded in self.waiting.pop(contents):
            moved = storage
            if self.device is not None and self.device != storage.device:
                moved = _moved(storage, self.device, self.groups[recorded][0][0])
            recorded.set_real(contents, moved)
            self._install(recorded)

    def _install(self, recorded: DeferredState) -> None:
        assert recorded.real is not None
        for name, fake in self.groups[recorded]:
            size = fake._fake_meta.num_bytes
            grad = autograd.gradient_of(fake)  # autograd's reference to the object
            if is_deferred_fake(grad):
                replay_and_install([(f"{name}.grad", grad)], device=self.device)  # type: ignore[list-item]
            install(fake, recorded, grad)
            self.num_real += 1
            if self.advance is not None:
                self.advance(size)
        del self.groups[recorded]
        remember_source(recorded.real, recorded.contents, recorded.mark)


def _add_note(error: Exception, text: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        error.args = (f"{error}\n{text}",)


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _moved(storage: torch.UntypedStorage, device: torch.device, name: str) -> torch.UntypedStorage:
    try:
        return memory.flat_view(storage, torch.uint8).to(device).untyped_storage()
    except RecursionError:
        raise
    except Exception as error:
        raise ReplayError(
            f"{name} was replayed, and could not be moved to {device}: {error}"
        ) from error
