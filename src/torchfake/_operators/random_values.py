"""Random draws: the metadata of their results, and values that are kept for programs to read.

Input: a random operator, and its results or keyword arguments. Output: whether the values of the
draw are kept, the operator with a private generator, or a :class:`LazyDraw`. Invariant: the global
generators never move; a private generator, forked from the global one when it is first needed,
draws in its place, in the order of the program. A ``generator=`` that the caller has given does
move. Called by: ``_operators/constant_propagation``, ``_operators/special_operators``;
``_cache/learn``.

Draws of integers, of single numbers and of a few floats decide what a program does next (samplers,
seeds, LayerDrop, ``torch.rand(1) < p``) and keep their values; larger draws of floats are weights
and noise and do not. What is not read is not drawn, until a later draw is read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from torchfake._contexts import holding
from torchfake._core import modes, schemas
from torchfake._core.memory import view_of
from torchfake._core.metadata import Metadata, bytes_spanned
from torchfake._core.modes import ForkedGenerator
from torchfake._core.storage import SharedBytes
from torchfake._operators.operator_call import Call, Kwargs
from torchfake._random import streams
from torchfake._tensor.fake_tensor import FakeTensor
from torchfake._torch import backends, dispatcher

aten = torch.ops.aten

MAX_KNOWN_FLOATS = 64
"""The largest draw of floats whose values are kept."""

_lock = threading.RLock()
"""Held while a private generator is drawn from."""

_MAX_PENDING = 256
"""So many draws wait for one that is read: then all are done."""

_FILLS = {
    "aten::rand": aten.uniform_.default,
    "aten::rand_like": aten.uniform_.default,
    "aten::randn": aten.normal_.default,
    "aten::randn_like": aten.normal_.default,
    "aten::uniform_": aten.uniform_.default,
    "aten::normal_": aten.normal_.default,
    "aten::exponential_": aten.exponential_.default,
    "aten::cauchy_": aten.cauchy_.default,
    "aten::log_normal_": aten.log_normal_.default,
    "aten::geometric_": aten.geometric_.default,
    "aten::bernoulli_": aten.bernoulli_.float,
}
"""Draws that may be done later, as fills of memory: none reads the value of a tensor."""

LIKE_ITS_ARGUMENT = frozenset({"aten::rand_like", "aten::randn_like"})
"""Draws that read nothing of their argument but its metadata."""

_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
"""Dtypes for which the CPU has kernels of all these fills."""


def keeps_draw(dtype: torch.dtype, num_elements: int) -> bool:
    """Whether the values of a draw of `num_elements` are kept."""
    is_inexact = dtype.is_floating_point or dtype.is_complex
    return not is_inexact or num_elements <= MAX_KNOWN_FLOATS


def keeps_drawn_values(func: Any, results: list[Any]) -> bool:
    """Whether the values that `func` draws for `results` are kept."""
    return schemas.overload_with_generator(func) is not None and all(
        keeps_draw(r.dtype, r.numel()) for r in results
    )


def with_private_generator(
    func: Any, args: Sequence[Any], kwargs: Kwargs
) -> tuple[Any, list[Any], dict[str, Any]]:
    """The call so changed that running it does not move the global generator."""
    overload = schemas.overload_with_generator(func)
    assert overload is not None, f"{func} draws, and takes no generator"
    given = _own_generator(args, kwargs)
    if given is None:
        fork = _current_fork()
        _draw_all(fork)
        given = fork.generator
    others = [arg for arg in args if not isinstance(arg, torch.Generator)]
    return overload, others, {**kwargs, "generator": given}


def _own_generator(args: Sequence[Any], kwargs: Kwargs) -> torch.Generator | None:
    """The generator that the caller has given, if it is not the global one."""
    found = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Generator)]
    if not found or backends.canonical_generator(found[0]) is torch.default_generator:
        return None
    return found[0]


def _current_fork() -> ForkedGenerator:
    """The thread's fork of the global generator; a new fork after the user has reseeded that."""
    with dispatcher.in_fake_slot(None):
        now = streams.state_bytes(torch.default_generator.get_state())
        fork = modes.forked_generator()
        if fork.generator is None or fork.forked_from != now:
            modes.discard_forked_generator()
            fork = modes.forked_generator()
            fork.generator, fork.forked_from = torch.Generator(device="cpu"), now
            fork.generator.set_state(torch.default_generator.get_state())
    return fork


# Draws that are done when they are read.


class LazyDraw(SharedBytes):
    """The value of a draw, which is done when it is read, after those before it in the stream."""

    __slots__ = ("_call", "_fork", "_num_bytes", "_record")

    def __init__(self, call: Any, record: Metadata, num_bytes: int, fork: ForkedGenerator) -> None:
        super().__init__(None)
        self._call = call  # a fill, and its numbers by position and name
        self._record = record
        self._num_bytes = num_bytes
        self._fork = fork

    def bytes(self) -> torch.UntypedStorage:
        if self.value is None:
            _draw_all(self._fork)
        assert self.value is not None
        return self.value

    def draw(self, generator: torch.Generator | None) -> None:
        """Draw from `generator`, at its present position."""
        fill, args, kwargs = self._call
        with dispatcher.no_interception():
            made = torch.UntypedStorage(self._num_bytes, device="cpu")
            fill(view_of(made, self._record), *args, **kwargs, generator=generator)
        self.value = made

    @property
    def num_bytes(self) -> int:
        return self._num_bytes


def _draw_all(fork: ForkedGenerator) -> None:
    """Do the draws that wait, in the order of the program."""
    with holding(_lock):
        for drawn in fork.pending:
            if drawn.value is None:
                drawn.draw(fork.generator)
        fork.pending.clear()


def draw_lazily(call: Call, fake: Any) -> bool:
    """Let the value of `fake`, a few floats that `call` has drawn, be drawn when it is read.

    Whether that is possible. A draw into a part of a storage whose value is unknown takes its place
    in the stream and is lost.
    """
    fill = _FILLS.get(call.traits.packet)
    if fill is None or not isinstance(fake, FakeTensor) or not _is_small_draw(fake, call):
        return False
    is_in_place = bool(call.traits.mutated_names)
    storage, record = fake._fake_storage, fake._fake_meta
    is_whole = record.num_bytes == storage.num_bytes
    if is_in_place and not is_whole and storage.value is not None:
        return False  # done at once, in the bytes that are there
    numbers = call.args[1:] if is_in_place else ()
    options = {n: v for n, v in call.kwargs.items() if is_in_place and n != "generator"}
    given = _own_generator((), call.kwargs)
    fork = ForkedGenerator(given) if given is not None else _current_fork()
    size = storage.num_bytes if is_whole else _bytes_up_to_end(record)
    drawn = LazyDraw((fill, numbers, options), record, size, fork)
    fork.pending.append(drawn)
    if given is not None or len(fork.pending) >= _MAX_PENDING:
        _draw_all(fork)
    storage.value = drawn if is_whole else None
    return True


def _is_small_draw(fake: FakeTensor, call: Call) -> bool:
    given = call.kwargs.get("generator")
    if given is not None and given.device.type != "cpu":
        return False
    is_plain = fake.dtype in _DTYPES and not fake._fake_meta.zero
    overload_is_plain = not (call.traits.mutated_names and len(call.tensors) != 1)
    return is_plain and overload_is_plain and fake.numel() <= MAX_KNOWN_FLOATS


def _bytes_up_to_end(record: Metadata) -> int:
    return bytes_spanned(record.size, record.stride, record.offset, record.dtype.itemsize)
