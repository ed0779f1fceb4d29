"""Making real on several threads, piece by piece: the bits of eager, within the memory allowed."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_equals_eager, assert_same, bits
from torch import nn

import profiles as profiles  # how many examples are drawn
from tiny_pieces import tiny_pieces
from torchfake import (
    _chains,
    _execute,
    _pieces,
    _positions,
    _replay,
    _workers,
    deferred_init,
    deferred_mode,
    errors,
    is_deferred,
    materialize_module,
    materialize_tensor,
)
from torchfake._graph import history
from torchfake._schedule import Chain, Lone, schedule

THREADS = [1, 2, 3, 16]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("torchfake")]


@pytest.fixture
def tiny() -> Iterator[None]:
    with tiny_pieces():
        yield


def both(build: Callable[[], nn.Module], **how: Any) -> tuple[nn.Module, nn.Module]:
    """Eager's module, and ours."""
    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    return eager, materialize_module(deferred_init(build), **how)


class Model(nn.Module):
    """One of each kind of initialisation."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24, padding_idx=0)  # a draw, and a row of zeros
        self.layers = nn.ModuleList([nn.Linear(24, 40), nn.Linear(40, 24)])
        self.norm = nn.LayerNorm(24)
        encoder = nn.TransformerEncoderLayer(24, 2, 48, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, 3)  # copies of one layer
        self.query = nn.Parameter(torch.empty(72, 24))
        for i in range(3):  # draws into parts of one
            nn.init.normal_(self.query[24 * i : 24 * (i + 1)], std=0.1 * (i + 1))
        self.orthogonal = nn.Parameter(nn.init.orthogonal_(torch.empty(30, 20)))
        self.truncated = nn.Parameter(nn.init.trunc_normal_(torch.empty(30, 21), std=0.5))
        self.after = nn.Linear(24, 33, dtype=torch.float64)
        self.scaled = nn.Parameter(torch.randn(37, 29) * 0.02 + 1)
        self.tied = self.embedding.weight
        self.bias = nn.Parameter(torch.zeros(500))
        self.register_buffer("table", torch.arange(100.0).sin(), persistent=False)


@pytest.mark.parametrize("num_threads", THREADS)
@pytest.mark.usefixtures("tiny")
def test_any_number_of_threads(num_threads: int) -> None:
    eager, made = both(Model, threads=num_threads)
    assert_same(eager, made)


@pytest.mark.usefixtures("tiny")
def test_in_any_order() -> None:
    assert_equals_eager(Model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.usefixtures("tiny")
def test_cast_after_it_was_built(dtype: torch.dtype) -> None:
    assert_equals_eager(lambda: Model().to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    piece=st.sampled_from([16, 32, 48, 160]),
    num_threads=st.integers(1, 4),
    kind=st.sampled_from(["normal", "uniform", "both"]),
)
def test_draws_of_any_size(
    sizes: list[int], piece: int, num_threads: int, kind: str, dtype: torch.dtype
) -> None:
    def build() -> nn.Module:
        module = nn.Module()
        for i, size in enumerate(sizes):
            values = torch.empty(size, dtype=dtype)
            if kind == "uniform":
                values.uniform_(-1, 2)
            else:
                values.normal_(0.5, 2)
            if kind == "both":
                values = values + torch.rand(size, dtype=dtype)
            module.register_buffer(f"t{i}", values)
        return module

    with tiny_pieces(piece):
        eager, made = both(build, threads=num_threads)
    assert_same(eager, made)


def tasks_of(*tensors: Any) -> list[Any]:
    return schedule(history(t._fake_storage.recorded.contents.op for t in tensors)).tasks


def test_what_is_joined_and_what_is_not() -> None:
    with deferred_mode():
        weight = torch.empty(50, 24).normal_().mul_(0.02)
        weight[0].fill_(0)  # a stretch of it
        half = weight.to(torch.bfloat16)
        column = torch.empty(50, 24).normal_()
        column[:, 0].fill_(0)  # not a stretch
    (chain,) = tasks_of(half)
    assert isinstance(chain, Chain)
    assert [str(step.op.func) for step in chain.steps] == [
        "aten.normal_.default", "aten.mul_.Tensor", "aten.fill_.Scalar", "aten._to_copy.default",
    ]  # fmt: skip
    draw, fill = tasks_of(column)
    assert isinstance(draw, Chain)
    assert isinstance(fill, Lone)
    assert fill.after == {draw}


def test_draws_behind_one_that_is_not_counted_wait_for_it() -> None:
    with deferred_mode():
        first = torch.empty(1_000_001).log_normal_()  # too long to be settled
        second = torch.empty(40).normal_()
    lone, chain = tasks_of(first, second)
    assert isinstance(lone, Lone)
    assert chain.after == {lone}


def test_no_task_waits_for_itself() -> None:
    """Chains that grow while others come to depend on them."""
    with deferred_mode():
        a, b = torch.empty(64).normal_(), torch.empty(64).uniform_()
        c = a[:10].cumsum(0)  # lone, closes a's
        a.add_(1)
        b.add_(a)
        b[:10].copy_(c)
        a.mul_(b)
    tasks = tasks_of(a, b)
    done: set[Any] = set()
    while len(done) < len(tasks):
        ready = [t for t in tasks if t not in done and t.after <= done]
        assert ready
        done.update(ready)


# Memory.


class Counted(dict[Any, torch.UntypedStorage]):
    """The storages of a replay; the most bytes there were at once."""

    peak = 0

    def __setitem__(self, cell: Any, storage: torch.UntypedStorage) -> None:
        super().__setitem__(cell, storage)
        Counted.peak = max(Counted.peak, sum(s.nbytes() for s in self.values()))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    def init(self: Any) -> None:
        self._of = Counted()

    monkeypatch.setattr(_execute.Storages, "__init__", init)
    monkeypatch.setattr(Counted, "peak", 0)
    return Counted


def test_the_float32_model_is_never_there(counted: type[Counted]) -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(10))).to(torch.bfloat16)

    with tiny_pieces():
        _, made = both(build)
    assert counted.peak <= sum(p.numel() * 2 for p in made.parameters())


def test_what_is_needed_whole_is_there_alone(counted: type[Counted]) -> None:
    """Each orthogonal matrix is 16 KB of float32, of which one is there at a time."""

    def build() -> nn.Module:
        layers = [nn.Parameter(nn.init.orthogonal_(torch.empty(64, 64))) for _ in range(6)]
        return nn.ParameterList(layers).to(torch.bfloat16)

    with tiny_pieces(num_scratch_bytes=20_000):
        eager, made = both(build)
    assert_same(eager, made)
    assert counted.peak <= 6 * 64 * 64 * 2 + 64 * 64 * 4


def test_copies_of_a_layer_draw_it_once() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(40, 40)
        return nn.ModuleList(copy.deepcopy(layer) for _ in range(5))

    done: list[str] = []
    original = _chains.Section._do

    def do(self: Any, step: Any, start: int, stop: int) -> None:
        if step.draw is not None:
            done.append(str(step.op))
        original(self, step, start, stop)

    with tiny_pieces(piece=100_000), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chains.Section, "_do", do)
        eager, made = both(build)
    assert_same(eager, made)
    assert len(done) == 2


@given(
    num_bytes=st.sampled_from([0, 1_000, 10_000]),
    num_threads=st.integers(1, 4),
    piece=st.sampled_from([16, 64, 500]),
    order=st.permutations(range(6)),
)
def test_little_memory_is_no_dead_end(
    num_bytes: int, num_threads: int, piece: int, order: list[int]
) -> None:
    """Whole steps and chains that wait for each other and for memory."""

    def build() -> nn.Module:
        made = [nn.init.orthogonal_(torch.empty(20, 20)) for _ in range(3)]
        made += [torch.empty(20, 20).normal_() for _ in range(3)]
        for i in order:
            other = made[(i + 1) % 6]
            made[i] = made[i].mul(other).add_(other.t().contiguous()).to(torch.float64).float()
            made[i][:, 3] = made[i][:, 3].cumsum(0)
        return nn.ParameterList(made)

    with tiny_pieces(piece, num_bytes):
        eager, ours = both(build, threads=num_threads)
    assert_same(eager, ours)


# What goes wrong.


def test_no_memory_is_left() -> None:
    huge = deferred_init(nn.Linear, 1 << 31, 1 << 20, bias=False)
    with pytest.raises(errors.ReplayError, match="there is no memory for 9,007,199,254,740,992"):
        materialize_module(huge)
    assert is_deferred(huge)


def test_an_error_on_another_thread() -> None:
    """It is raised where somebody sees it; what is left can be had again."""
    torch.manual_seed(0)
    eager = Model()
    torch.manual_seed(0)
    module = deferred_init(Model)
    original = _chains.Section._do
    failed: list[int] = []
    caught: list[str] = []

    def do(self: Any, step: Any, start: int, stop: int) -> None:
        if threading.current_thread() is not threading.main_thread() and not failed:
            failed.append(1)
            raise errors.ReplayError("out of luck")
        original(self, step, start, stop)

    with tiny_pieces(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chains.Section, "_do", do)
        for attempt in range(100):  # until a helper was quick enough to get something to do
            try:
                materialize_module(module if attempt == 0 else deferred_init(Model), threads=4)
            except errors.ReplayError as error:
                caught.append(str(error))
                break
        assert caught == ["out of luck"]
        materialize_module(module)
    assert_same(eager, module)


@pytest.mark.parametrize("at", [0, 3, 40, 200])
def test_an_interrupt_anywhere(at: int) -> None:
    """Ctrl-C leaves each tensor deferred or real, and another call goes on."""
    torch.manual_seed(0)
    eager = Model()
    torch.manual_seed(0)
    module = deferred_init(Model)
    original = _chains.Section._do
    count = [0]

    def do(self: Any, step: Any, start: int, stop: int) -> None:
        if threading.current_thread() is threading.main_thread():
            count[0] += 1
            if count[0] > at:
                raise KeyboardInterrupt
        original(self, step, start, stop)

    with tiny_pieces(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chains.Section, "_do", do)
        with contextlib.suppress(KeyboardInterrupt):  # the helpers may have done it all
            materialize_module(module)
    with tiny_pieces():
        assert_same(eager, materialize_module(module))


@pytest.mark.usefixtures("tiny")
def test_a_real_tensor_that_was_written_is_found_in_a_chain() -> None:
    real = torch.tensor(2.0)
    with deferred_mode():
        made = torch.empty(100).normal_().fill_(real)
    real.add_(1)
    with pytest.raises(errors.ReplayError, match="was written in place since"):
        materialize_tensor(made)


@pytest.mark.usefixtures("tiny")
def test_uninitialised_memory_with_the_rest() -> None:
    made = materialize_module(deferred_init(lambda: nn.ParameterList([torch.empty(100)])))
    assert not is_deferred(made)


# Draws that another torch makes in another way.


def test_what_cannot_be_cut_is_done_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pieces, "_is_cut_right", lambda *_: False)
    with deferred_mode():
        made = torch.empty(1000).normal_()
    assert [type(task) for task in tasks_of(made)] == [Lone]
    with tiny_pieces():
        eager, ours = both(Model)
    assert_same(eager, ours)


def test_arithmetic_that_rounds_by_place_is_done_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pieces, "_was_seen_exact", lambda *_: False)
    with deferred_mode():
        made = torch.empty(1000).normal_().mul_(0.5)
    assert [type(task) for task in tasks_of(made)] == [Chain, Lone]


@pytest.mark.parametrize(
    "func",
    [name for name in _pieces._BUILDERS if _pieces._BUILDERS[name] in (
        _pieces._in_place, _pieces._out_of_place)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_arithmetic_in_pieces(func: str, dtype: torch.dtype) -> None:
    """Each operator of the table, wherever it is cut."""
    _, packet, overload = func.split(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    second = [a for a in op._schema.arguments[1:] if a.name in ("other", "min", "max")][:1]

    def build() -> nn.Module:
        values = torch.rand(1003, dtype=dtype) * 0.9
        result = op(values, *(0.3 for _ in second))
        module = nn.Module()
        module.register_buffer("values", result)
        return module

    with tiny_pieces():
        eager, made = both(build)
    assert bits(made.values) == bits(eager.values)  # type: ignore[arg-type]


# Places in streams.


def test_states_that_are_known_are_used() -> None:
    """From the nearest before; and the oldest of too many are forgotten."""
    anchor = torch.Generator().manual_seed(3).get_state()
    known = _positions.Known()
    expected = {}
    generator = torch.Generator()
    for words in (5, 1000, 70_000, 70_001, 900):
        generator.set_state(anchor)
        torch.empty(words, dtype=torch.int32).random_(generator=generator)
        expected[words] = generator.get_state()
    for words in (70_000, 5, 1000, 70_001, 900, 70_000):
        assert torch.equal(known.state(anchor, words), expected[words])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_positions, "MAX_KNOWN", 2)
        for words in (1, 2, 3, 4):
            known.state(anchor, words)
    assert len(known._states) <= 5
    assert torch.equal(known.state(anchor, 900), expected[900])


def test_small_ones_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replay, "schedule", lambda _: 1 / 0)
    monkeypatch.setattr(_replay, "SMALL_BYTES", 10_000)
    materialize_module(deferred_init(nn.Linear, 10, 10))
    with pytest.raises(ZeroDivisionError):
        materialize_module(deferred_init(nn.Linear, 100, 100))


def test_little_work_takes_no_threads() -> None:
    workers = _workers.Workers(schedule([]), set(), lambda *_: None, num_threads=8)
    assert workers._num_helpers() == 0


@pytest.mark.parametrize("threads", [0, -1, "2", 1.5, True])
def test_threads_that_are_none(threads: Any) -> None:
    module = deferred_init(nn.Linear, 3, 4)
    with pytest.raises(ValueError, match="give how many, at least 1"):
        materialize_module(module, threads=threads)
    assert is_deferred(module)


class Partly(nn.Module):
    """A draw that is shaped as another tensor, of which only a part is used."""

    def __init__(self, size: int) -> None:
        super().__init__()
        x = torch.empty(size)
        y = torch.randn_like(x)
        self.z = nn.Parameter(torch.zeros(size))
        with torch.no_grad():
            self.z[:64].copy_(y[:64])
        self.w = nn.Parameter(torch.randn(size))
        x[::2].zero_()
        x[1::2].zero_()
        self.register_buffer("x", x)


@pytest.mark.parametrize("size", [200, 400_000])
def test_a_draw_of_which_a_part_is_used(size: int) -> None:
    eager, made = both(lambda: Partly(size))
    assert_same(eager, made)
    with tiny_pieces(piece=32 if size < 1000 else 4096):
        eager, made = both(lambda: Partly(size))
    assert_same(eager, made)


def test_nothing_is_handed_over_before_its_last_step() -> None:
    """A chain that begins before a lone step, and goes on after it."""

    def build() -> nn.Module:
        module = nn.Module()
        module.register_buffer("mask", torch.ones(16, 16).mul_(0.5))
        module.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(16, 16)))
        with torch.no_grad():
            module.weight.mul_(module.mask)
        return module

    module = deferred_init(build)
    plan = schedule(
        history(t._fake_storage.recorded.contents.op for t in module.state_dict().values())
    )
    cell = module.weight._fake_storage.recorded.contents.cell  # type: ignore[union-attr]
    assert isinstance(plan.first[cell], Lone)
    assert isinstance(plan.last[cell], Chain)
    original = _chains.Section._do

    def do(self: Any, step: Any, start: int, stop: int) -> None:
        if str(step.op.func) == "aten.mul_.Tensor" and step.op.reads() and len(step.views) == 2:
            raise KeyboardInterrupt
        original(self, step, start, stop)

    with tiny_pieces(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_chains.Section, "_do", do)
        with pytest.raises(KeyboardInterrupt):
            materialize_module(module, threads=1)
    assert is_deferred(module.weight)  # type: ignore[arg-type]


INTERRUPTED = """
import signal, sys, threading, time, torch
from torch import nn
from torchfake import deferred_init, is_deferred, materialize_module

def build():
    return nn.Sequential(*(nn.Linear(300, 300) for _ in range(30)))

torch.manual_seed(0)
expected = build()
for i in range(40):
    torch.manual_seed(0)
    module = deferred_init(build)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.0005 * (i % 20 + 1))
    try:
        materialize_module(module, threads=3)
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    deadline = time.monotonic() + 5
    while any(t.name == "torchfake" for t in threading.enumerate()):
        assert time.monotonic() < deadline
    materialize_module(module)
    assert all(map(torch.equal, module.parameters(), expected.parameters()))
print("done")
"""


def test_real_interrupts_at_any_moment() -> None:
    """In a process of its own, which must end."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "done", done.stderr
