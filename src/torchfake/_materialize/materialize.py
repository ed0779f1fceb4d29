"""Deferred fakes replayed, and materialized one storage after the other.

Input: deferred fakes by name, which have been checked. Output: the same objects, real. Invariant:
at any time each is either still deferred or wholly real, whatever interrupts the replay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import torch

from torchfake._core import memory
from torchfake._graph.deferred_storage import DeferredState
from torchfake._graph.operations import Contents
from torchfake._materialize.dematerialize import remember_source
from torchfake._materialize.install import install
from torchfake._replay import replay
from torchfake._tensor.fake_tensor import FakeTensor, is_deferred_fake
from torchfake._torch import autograd, dispatcher, subclass
from torchfake.errors import ReplayError


def materialize(
    fakes: Iterable[tuple[str, FakeTensor]],
    *,
    device: torch.device | None = None,
    keep: bool = False,
    advance: Callable[[int], None] | None = None,
    num_threads: int | None = None,
) -> None:
    """Materialize `fakes`, each as soon as its storage is real.

    Args:
        fakes: by name; checked before. Those that are real by now are passed over.
        device: where to; None: where they were recorded.
        keep: keep what is computed on the way, for later replays.
        advance: called with the number of bytes of each.
        num_threads: that compute values; None: ``torch.get_num_threads()``.

    Raises:
        ReplayError: if a recorded operation cannot be replayed; it says which tensors are real.
    """
    by_storage: dict[int, list[tuple[str, FakeTensor]]] = {}
    with subclass.no_subclass_functions():  # a lazy parameter refuses nearly all
        for name, fake in _each_once(fakes):
            if is_deferred_fake(fake):
                by_storage.setdefault(id(fake._fake_storage), []).append((name, fake))
        if by_storage:
            _Run(list(by_storage.values()), device, advance).run(keep, num_threads)


def _each_once(fakes: Iterable[tuple[str, FakeTensor]]) -> list[tuple[str, FakeTensor]]:
    """By the first of its names: an LSTM has its weights twice."""
    found: dict[int, tuple[str, FakeTensor]] = {}
    for name, fake in fakes:
        found.setdefault(id(fake), (name, fake))
    return list(found.values())


class _Run:
    """One materialization: the fakes that wait for each storage."""

    def __init__(
        self,
        groups: list[list[tuple[str, FakeTensor]]],
        device: torch.device | None,
        advance: Callable[[int], None] | None,
    ) -> None:
        self.device = device
        self.advance = advance
        self.num_tensors = sum(map(len, groups))
        self.num_real = 0
        self.ready: list[list[tuple[str, FakeTensor]]] = []
        self.waiting: dict[Contents, list[list[tuple[str, FakeTensor]]]] = {}
        for group in groups:
            recorded = _recorded(group)
            if recorded.real is not None:
                self.ready.append(group)
            else:
                self.waiting.setdefault(recorded.contents, []).append(group)

    def run(self, keep: bool, num_threads: int | None) -> None:
        for group in self.ready:
            self._install(group)
        wanted = [_recorded(groups[0]).contents for groups in self.waiting.values()]
        try:
            replay.replay(wanted, self._finish, cache_all=keep, num_threads=num_threads)
        except Exception as error:
            if self.num_real:
                _add_note(error, self._progress())
            raise

    def _progress(self) -> str:
        groups = [group for groups in self.waiting.values() for group in groups]
        left = [name for group in groups for name, _ in group]
        return (
            f"{self.num_real} of {self.num_tensors} tensors are materialized and stay so; "
            f"{_named(left)} are still deferred. Materialize again to continue"
        )

    def _finish(self, contents: Contents, storage: torch.UntypedStorage) -> None:
        for group in self.waiting[contents]:
            moved = storage
            if self.device is not None and self.device != storage.device:
                moved = _moved(storage, self.device, group[0][0])
            _recorded(group).set_real(contents, moved)
            self._install(group)
        del self.waiting[contents]

    def _install(self, group: list[tuple[str, FakeTensor]]) -> None:
        recorded = _recorded(group)
        assert recorded.real is not None
        for name, fake in group:
            size = fake._fake_meta.num_bytes
            grad = autograd.gradient_of(fake)  # the object: autograd refers to the fake
            if is_deferred_fake(grad):
                materialize([(f"{name}.grad", grad)], device=self.device)  # type: ignore[list-item]
            install(fake, recorded, grad)
            self.num_real += 1
            if self.advance is not None:
                self.advance(size)
        remember_source(recorded.real, recorded.contents, recorded.mark)


def _recorded(group: list[tuple[str, FakeTensor]]) -> DeferredState:
    recorded = group[0][1]._fake_storage.deferred
    assert isinstance(recorded, DeferredState)
    return recorded


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
        with dispatcher.as_eager():
            return memory.flat_view(storage, torch.uint8).to(device).untyped_storage()
    except Exception as error:
        raise ReplayError(
            f"{name} was replayed, and could not be moved to {device}: {error}"
        ) from error
