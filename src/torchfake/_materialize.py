"""Deferred tensors made real, in place.

Enters: deferred fakes. Leaves: the same objects, real. Invariant: at any time each is either still
deferred or wholly real; what stands in the way of one is found before its memory is touched.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchfake import _memory, _private, _replay
from torchfake._graph import MAX_EXTERNAL_BYTES, Contents, Deferred, history
from torchfake._metadata import Storage, metadata_of
from torchfake._tensor import FakeTensor, fake_class, is_deferred_fake, new_fake
from torchfake.errors import ChangedValueError, MaterializeError

lock = threading.RLock()
"""One materialization at a time: two of one module must not make it twice."""

_OF_FAKES = ("_fake_meta", "_fake_storage", "_is_param")


def make_real(
    named: Iterable[tuple[str, FakeTensor]],
    *,
    device: torch.device | None = None,
    keep: bool = False,
    each: Callable[[int], None] | None = None,
    num_threads: int | None = None,
) -> None:
    """Make these fakes real, each as soon as its storage is; `each` is told of its bytes."""
    with lock, _private.no_subclass_functions():  # a lazy parameter refuses nearly all
        waiting: dict[int, list[tuple[str, FakeTensor]]] = {}
        for name, fake in check(named):
            waiting.setdefault(id(fake._fake_storage), []).append((name, fake))
        if waiting:
            _Run(list(waiting.values()), device, each).run(keep, num_threads)


def check(named: Iterable[tuple[str, FakeTensor]]) -> list[tuple[str, FakeTensor]]:
    """Those that are deferred, if all of them can become real."""
    with _private.no_subclass_functions():
        found: dict[int, tuple[str, FakeTensor]] = {}
        for name, fake in named:
            if is_deferred_fake(fake):
                found.setdefault(id(fake), (name, fake))  # an LSTM has its weights twice
        for name, fake in found.values():
            _check_can_swap(name, fake)
    return list(found.values())


def forget_history(fake: FakeTensor) -> None:
    """Make the result of a differentiable operation a leaf, in place; its graph is let go."""
    leaf = new_fake(fake._fake_meta, fake._fake_storage, type(fake))
    leaf.__dict__.update(fake.__dict__)
    _private.swap(fake, leaf)


class _Run:
    """One materialization: the fakes that wait for each storage."""

    def __init__(
        self,
        groups: list[list[tuple[str, FakeTensor]]],
        device: torch.device | None,
        each: Callable[[int], None] | None,
    ) -> None:
        self.device = device
        self.each = each
        self.num_tensors = sum(map(len, groups))
        self.num_real = 0
        self.ready: list[list[tuple[str, FakeTensor]]] = []
        self.waiting: dict[int, list[list[tuple[str, FakeTensor]]]] = {}
        for group in groups:
            recorded = _recorded(group)
            if recorded.real is not None:
                self.ready.append(group)
            else:
                if device is None:
                    _check_is_there(group[0][0], recorded.contents.cell.device)
                self.waiting.setdefault(id(recorded.contents), []).append(group)

    def run(self, keep: bool, num_threads: int | None) -> None:
        for group in self.ready:
            self._install(group)
        wanted = [_recorded(groups[0]).contents for groups in self.waiting.values()]
        try:
            _replay.replay(wanted, self._finish, keep=keep, num_threads=num_threads)
        except Exception as error:
            if self.num_real:
                _say_what_is_left(error, self._progress())
            raise

    def _progress(self) -> str:
        groups = [group for groups in self.waiting.values() for group in groups]
        left = [name for group in groups for name, _ in group]
        return (
            f"{self.num_real} of {self.num_tensors} tensors are real now, and stay so; "
            f"{_named(left)} are still deferred. Materializing again goes on from there"
        )

    def _finish(self, contents: Contents, storage: torch.UntypedStorage) -> None:
        for group in self.waiting[id(contents)]:
            moved = storage
            if self.device is not None and self.device != storage.device:
                moved = _moved(storage, self.device)
            _recorded(group).real = moved
            self._install(group)
        del self.waiting[id(contents)]

    def _install(self, group: list[tuple[str, FakeTensor]]) -> None:
        recorded = _recorded(group)
        assert recorded.real is not None
        for name, fake in group:
            size = fake._fake_meta.num_bytes
            _become_real(name, fake, recorded)
            self.num_real += 1
            if self.each is not None:
                self.each(size)
        remember(recorded.real, recorded.contents, recorded.mark)


def _recorded(group: list[tuple[str, FakeTensor]]) -> Deferred:
    recorded = group[0][1]._fake_storage.recorded
    assert isinstance(recorded, Deferred)
    return recorded


def _say_what_is_left(error: Exception, text: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        error.args = (f"{error}\n{text}",)


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


# One tensor.


def _check_can_swap(name: str, fake: FakeTensor) -> None:
    node = _history_of(fake)
    if node is not None:
        raise MaterializeError(
            f"{name} is the result of {node.name()}, whose history cannot be made real. "
            "Materialize what it was computed from and compute it again, or detach() it"
        )
    check_no_graph(name, fake)


def check_no_graph(name: str, tensor: torch.Tensor) -> None:
    """Refuse what a graph of autograd holds, which would go on to hold it."""
    if _private.is_in_a_graph(tensor):
        raise MaterializeError(
            f"{name} cannot become real in place: the graph of a forward pass holds it. Delete the "
            "outputs of that pass, or run it in torch.no_grad()"
        )


def _history_of(fake: FakeTensor) -> Any:
    try:
        return fake.grad_fn
    except RuntimeError:  # a view made in no_grad, whose base was written since: it has none
        return None


def _check_is_there(name: str, device: torch.device) -> None:
    if not _memory.is_there(device):
        raise MaterializeError(
            f"{name} was recorded on {device}, which this machine does not have: pass "
            "device='cpu', or another it has"
        )


def _become_real(name: str, fake: FakeTensor, recorded: Deferred) -> None:
    assert recorded.real is not None
    grad = fake.grad
    if is_deferred_fake(grad):
        make_real([(f"{name}.grad", grad)])  # type: ignore[list-item]
    is_inference = recorded.is_inference or fake.is_inference()
    with _private.as_eager(), torch.inference_mode(is_inference):
        real = _of_class(_memory.view_of(recorded.real, fake._fake_meta), fake)
        real.requires_grad_(fake.requires_grad)
        if grad is not None and not isinstance(grad, FakeTensor):
            real.grad = grad
    own = fake.__dict__
    real.__dict__.update({key: own[key] for key in own if key not in _OF_FAKES})
    _private.move_hooks(fake, real)
    _private.swap(fake, real)


def _of_class(view: torch.Tensor, fake: FakeTensor) -> torch.Tensor:
    """`view` with the class that a real one would have."""
    wanted = getattr(type(fake), "_fake_of", None)
    if wanted is None:
        return torch.nn.Parameter(view, False) if is_parameter(fake) else view
    return _private.make_subclass(wanted, view)


def is_parameter(fake: FakeTensor) -> bool:
    return bool(fake.__dict__.get("_is_param", False))


def _moved(storage: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    with _private.as_eager():
        return _memory.flat_view(storage, torch.uint8).to(device).untyped_storage()


# And back.


class _Source:
    """What a real storage was made from."""

    __slots__ = ("contents", "mark", "storage")

    def __init__(self, storage: Any, contents: Contents, mark: int) -> None:
        self.storage = storage
        self.contents = contents
        self.mark = mark


_sources: dict[int, _Source] = {}
"""By the address of the storage; as long as that is there."""


def remember(storage: torch.UntypedStorage, contents: Contents, mark: int) -> None:
    """Keep what `storage` was made from, as long as it lives, unless that is large itself."""
    ops = history([contents.op])
    if sum(external.num_bytes for op in ops for external in op.externals()) > MAX_EXTERNAL_BYTES:
        return
    key = _private.storage_key(storage)
    gone = weakref.ref(storage, lambda _: _sources.pop(key, None))
    _sources[key] = _Source(gone, contents, mark)


def source_of(real: torch.Tensor) -> _Source | None:
    return _sources.get(_private.storage_key(real.untyped_storage()))


def equals_its_source(real: torch.Tensor, source: _Source) -> bool:
    """Whether the storage of `real` holds what its record says, bit for bit."""
    equal: list[bool] = []

    def compare(_: Contents, made: torch.UntypedStorage) -> None:
        both = real.untyped_storage(), made
        own, again = (_memory.flat_view(s, torch.uint8).cpu() for s in both)
        equal.append(torch.equal(own, again))

    if source.contents.op is None:
        return False  # memory that nobody had written: what it holds now is somebody's
    _replay.replay([source.contents], compare)
    return equal[0]


def check_can_be_deferred(name: str, real: torch.Tensor) -> None:
    """Refuse a tensor that would lose a gradient."""
    if real.grad is not None:
        raise ChangedValueError(
            f"{name} has a gradient, which would be lost: zero_grad() first, or leave it out with "
            "check_fn"
        )
    if _private.is_in_a_graph(real):
        raise MaterializeError(
            f"{name} cannot become fake in place: the graph of a forward pass holds it. Delete the "
            "outputs of that pass"
        )


def make_deferred(real: torch.Tensor, storage: Storage) -> None:
    """Make a real tensor a fake on `storage` again, in place."""
    record = metadata_of(real, storage.device)
    fake = new_fake(record, storage, fake_class(type(real)))
    if isinstance(real, torch.nn.Parameter):
        fake.__dict__["_is_param"] = True
    fake.__dict__.update({k: v for k, v in real.__dict__.items() if k not in fake.__dict__})
    fake.requires_grad_(real.requires_grad)
    _private.move_hooks(real, fake)
    _private.swap(real, fake)
