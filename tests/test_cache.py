"""The cache: what is remembered is right, what could be wrong is not remembered.

Enters: programs run several times, so that all but the first come from recipes. The oracle is
eager, as everywhere.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import describe
from torchfake import FakeTensor, _cache, _dispatch, _recipes, fake_mode, is_fake
from torchfake.errors import CacheError, UnknownValueError

Program = Callable[[], Any]
FIRST = _recipes.Place(0)


@pytest.fixture(autouse=True)
def _from_nothing() -> Iterator[None]:
    _cache.clear()
    yield
    _cache.clear()


def unknown(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A fake whose value nobody knows, in a mode; a real tensor outside."""
    made = torch.empty(size, dtype=dtype)
    if isinstance(made, FakeTensor):
        made._fake_storage.value = None
        return made
    return made.fill_(1)


def assert_same_again(program: Program, times: int = 3) -> None:
    """`program` describes as in eager each time."""
    expected = describe(program())
    for _ in range(times):
        with fake_mode():
            assert describe(program()) == expected


class KernelRan(Exception):
    """An operation did not come from the cache."""


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and every operation must be a hit from then on. A checked hit runs its kernel."""
    monkeypatch.setattr(_cache.settings, "checking", False)

    def refuse(func: Any, args: Any, kwargs: Any) -> Any:
        raise KernelRan(str(func))

    return lambda: monkeypatch.setattr(_dispatch, "_run", refuse)


# Hits.

HITS: dict[str, Program] = {
    "add": lambda: unknown(4, 4) + unknown(4, 4),
    "scalar": lambda: unknown(4) * 2.5,
    "product": lambda: unknown(2, 3) @ unknown(3, 4),
    "empty": lambda: torch.empty(3, 4, dtype=torch.float64, device="cpu"),
    "empty_strided": lambda: torch.empty_strided((2, 3), (1, 2)),
    "view": lambda: unknown(4, 4).view(16),
    "views": lambda: unknown(6, 4).split(2),
    "several": lambda: unknown(5, 4).max(dim=1),
    "list": lambda: torch.cat([unknown(2, 3), unknown(4, 3)]),
    "in place": lambda: unknown(3).add_(unknown(3)),
    "fill": lambda: unknown(100_000).zero_(),
    "small fill": lambda: unknown(4).fill_(2.0),
    "zeros": lambda: torch.zeros(4, 5),
    "random": lambda: [unknown(7).normal_(0.0, 0.02), unknown(7).uniform_(-1.0, 1.0)],
    "metadata in place": lambda: unknown(2, 3).t_().unsqueeze_(0),
    "no bias": lambda: F.conv2d(unknown(1, 3, 8, 8), unknown(4, 3, 3, 3)),
    "norm": lambda: F.layer_norm(unknown(2, 8), (8,)),
    "index": lambda: unknown(5, 4)[unknown(3, dtype=torch.int64)],
    "foreach": lambda: torch._foreach_add([unknown(2), unknown(3)], 1.0),
    "foreach in place": lambda: torch._foreach_mul_([unknown(2), unknown(3)], 2.0),
    "parameter": lambda: nn.Parameter(torch.empty(4)),
    "conjugate": lambda: unknown(3, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("program", HITS.values(), ids=HITS)
def test_a_hit_runs_no_kernel(program: Program, no_kernels: Callable[[], None]) -> None:
    expected = describe(program())
    with fake_mode():
        assert describe(program()) == expected
        no_kernels()
        assert describe(program()) == expected


def test_a_miss_would_be_seen(no_kernels: Callable[[], None]) -> None:
    no_kernels()
    with fake_mode(), pytest.raises(KernelRan):
        unknown(3)


def test_backward_hits(no_kernels: Callable[[], None]) -> None:
    with fake_mode():
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
        x = torch.empty(3, 4)
        model(x).sum().backward()
        model.zero_grad()
        no_kernels()
        model(x).sum().backward()
    assert [p.grad.shape for p in model.parameters()] == [p.shape for p in model.parameters()]


# Keys.

NUMBERS = (1, 1.0, True, 1 + 0j, 0, 0.0, False)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.complex64])
def test_equal_numbers_of_different_types(dtype: torch.dtype) -> None:
    """1, 1.0 and True are equal and hash alike; what comes of them is not."""
    operations = (torch.add, torch.mul, torch.eq)
    assert_same_again(
        lambda: [op(unknown(3, dtype=dtype), n) for op in operations for n in NUMBERS]
    )
    assert_same_again(lambda: [torch.full((2,), n) for n in NUMBERS])


def test_alpha_is_checked_by_its_type() -> None:
    with fake_mode():
        x = unknown(3, dtype=torch.int64)
        torch.add(x, x, alpha=2)
        with pytest.raises(ValueError, match="alpha") as caught:
            torch.add(x, x, alpha=2.5)
    assert caught.value.__context__ is None


def test_default_dtype() -> None:
    """It decides what is not said: of factories, and of integers divided."""

    def program() -> list[Tensor]:
        x = unknown(3, dtype=torch.int64)
        made = []
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
            torch.set_default_dtype(dtype)
            made += [torch.empty(2), torch.ones(2), x / 2, x.sqrt(), x.float().mul(2)]
        return made

    try:
        assert_same_again(program)
    finally:
        torch.set_default_dtype(torch.float32)


def test_current_device() -> None:
    for _ in range(3):
        with fake_mode(fake_cuda=3):
            for index in (0, 2, 1):
                torch.cuda.set_device(index)
                assert torch.empty(2, device="cuda").device == torch.device("cuda", index)
                assert torch.ones(2).to("cuda").device == torch.device("cuda", index)
        with fake_mode(fake_cuda=1), pytest.raises((RuntimeError, AssertionError)):
            torch.empty(2, device="cuda:2")


def test_devices_do_not_meet() -> None:
    def devices() -> list[torch.device]:
        with fake_mode(fake_cuda=2):
            made = [torch.empty(2, device=d) for d in ("cpu", "cuda:0", "cuda:1")]
            return [(t + t).device for t in made]

    assert devices() == devices() == [torch.device(d) for d in ("cpu", "cuda:0", "cuda:1")]


def test_masks_are_counted_each_time() -> None:
    def program() -> list[Tensor]:
        x, made = torch.arange(6.0), []
        for bound in (1, 4, 2, 6):
            mask = torch.arange(6) < bound
            made += [x[mask], torch.masked_select(x, mask), torch.nonzero(mask)]
        return made

    assert_same_again(program)


def test_generators_are_the_callers() -> None:
    """A key would keep one alive, and its state is no part of a key."""
    with fake_mode():
        generator = torch.Generator().manual_seed(1)
        first = torch.randint(0, 1_000_000, (4,), generator=generator).tolist()
        second = torch.randint(0, 1_000_000, (4,), generator=generator).tolist()
    assert first != second
    assert not [o for o in gc.get_referrers(generator) if isinstance(o, tuple)]


def test_draws_go_on() -> None:
    with fake_mode():
        drawn = [tuple(torch.randint(0, 1_000_000, (4,)).tolist()) for _ in range(5)]
    assert len(set(drawn)) == 5


# Aliases and writes.


def test_results_alias_the_argument_of_this_call() -> None:
    with fake_mode():
        bases = [unknown(4, 4) for _ in range(3)]
        views = [base.view(16)[2:].as_strided((2,), (1,)) for base in bases]
    for base, view in zip(bases, views, strict=True):
        assert view._fake_storage is base._fake_storage
        assert view._base is base


def test_arguments_that_overlap() -> None:
    """What is learned of arguments that lie apart holds for those that do not, and vice versa."""

    def program() -> list[Tensor]:
        x, y = torch.zeros(4), torch.ones(4)
        x.add_(y)
        x.add_(x)
        y.add_(x)
        x.mul_(x.view(4))
        return [x, y]

    expected = [t.tolist() for t in program()]
    for _ in range(3):
        with fake_mode():
            assert [t.tolist() for t in program()] == expected


def test_same_metadata_different_argument() -> None:
    """An operation that returns an argument returns that one."""
    with fake_mode():
        x, y = unknown(3), unknown(3)
        for first, second in ((x, y), (y, x), (x, x), (x, y)):
            assert first.add_(second) is first
            out = unknown(3)
            assert torch.add(first, second, out=out) is out


def test_versions_are_counted() -> None:
    def program() -> list[int]:
        weights = [torch.empty(2), torch.empty(3)]
        view = weights[0].view(1, 2)
        torch._foreach_add_(weights, 1.0)
        weights[1].normal_()
        weights[0].t_()
        return [t._version for t in (*weights, view)]

    expected = program()
    for _ in range(3):
        with fake_mode():
            assert program() == expected


def test_storages_of_other_sizes() -> None:
    """Equal views of unlike storages: what depends on the storage is not remembered."""
    with fake_mode():
        for length in (4, 100, 4):
            x = unknown(length)[:4]
            fits = length == 100
            for ask in (lambda x=x: x.as_strided((50,), (1,)),):
                if fits:
                    assert ask().shape == (50,)
                else:
                    with pytest.raises(RuntimeError, match="out of bounds"):
                        ask()
            x = unknown(length)[:4]
            x.resize_(6)
            assert x.untyped_storage().nbytes() == max(length, 6) * 4


# Values.


def test_values_of_hits() -> None:
    def program() -> list[Any]:
        x = torch.zeros(4)
        x[1:].fill_(2.0)
        y = torch.ones(4)
        y.zero_()
        z = torch.full((2,), 7)
        w = torch.arange(4)
        w += z[0]
        u = torch.zeros(3, dtype=torch.int32).fill_(True)
        return [t.tolist() for t in (x, y, z, w, u, x + y, torch.stack([x, y]).sum(0))]

    expected = program()
    for _ in range(4):
        with fake_mode():
            assert program() == expected


def test_unwritten_integers_begin_as_zeros() -> None:
    """Of floats nothing is known. A hit knows as much as its kernel."""
    with fake_mode():
        unread = unknown(3, dtype=torch.int64)
        for _ in range(3):
            made = [torch.empty_like(unread), unread.new_empty(3)]
            made[0][1] = 4
            assert [t.tolist() for t in made] == [[0, 4, 0], [0, 0, 0]]
            with pytest.raises(UnknownValueError):
                unread.new_empty(3, dtype=torch.float32).tolist()


def test_a_filled_storage_is_nobody_elses() -> None:
    with fake_mode():
        for _ in range(3):
            a, b = torch.zeros(2), torch.zeros(2)
            a.add_(1)
            assert (a.tolist(), b.tolist()) == ([1.0, 1.0], [0.0, 0.0])


def test_a_part_that_is_filled_makes_nothing_known() -> None:
    with fake_mode():
        for _ in range(3):
            x = unknown(4)
            x[:2].zero_()
            with pytest.raises(UnknownValueError):
                x[:2].tolist()


def test_room_behind_a_fill_is_unknown() -> None:
    with fake_mode():
        for _ in range(3):
            x = torch.zeros(2)
            x.resize_(4)
            with pytest.raises(UnknownValueError):
                x.tolist()


def test_forgotten_and_known_again() -> None:
    with fake_mode():
        for _ in range(3):
            x = torch.zeros(2)
            x.normal_()
            with pytest.raises(UnknownValueError):
                x.tolist()
            x.fill_(3)
            assert x.tolist() == [3.0, 3.0]


def test_the_line_of_a_hit_is_named() -> None:
    lines = []
    with fake_mode():
        x = unknown(3)
        for _ in range(3):
            y = x + x
            with pytest.raises(
                UnknownValueError, match=r"aten.add.Tensor at .*test_cache.py:(\d+)"
            ):
                y.tolist()
            lines.append(y._fake_storage.origin.line)
    assert lines[0] == lines[1] == lines[2]


# What no key says, each found where a hit once went wrong.


def test_zeros_have_a_sign() -> None:
    def program() -> list[Any]:
        zeros = [torch.full((1,), 0.0), torch.full((1,), -0.0)]
        zeros += [torch.ones(2).fill_(n) for n in (0.0, -0.0, 0)]
        return [(1 / zero).tolist() for zero in zeros]

    expected = program()
    for _ in range(3):
        with fake_mode():
            assert program() == expected


def test_nans_are_not_remembered() -> None:
    with fake_mode():
        counts = []
        for _ in range(20):
            torch.full((2,), float("nan")).masked_fill(torch.tensor([True, False]), float("nan"))
            counts.append(_cache.count())
    assert counts[-1] == counts[5]


def test_storages_larger_than_their_tensor() -> None:
    with fake_mode():
        for _ in range(3):
            gaps = torch.empty_strided((1000,), (50,), dtype=torch.int64)
            assert gaps._fake_storage.num_known_bytes() == gaps.untyped_storage().nbytes()
            assert torch.empty_strided((200_000,), (0,), dtype=torch.int64)[0].item() == 0


def test_outs_that_grow() -> None:
    def program() -> list[Any]:
        x = unknown(4)
        outs = [torch.empty(8)[:0], torch.empty(0), torch.empty(4)]
        for out in outs:
            torch.add(x, x, out=out)
        return [*outs, *(out.untyped_storage().nbytes() for out in outs)]

    assert_same_again(program)


def test_outs_that_overlap() -> None:
    with fake_mode():
        i, p, q = unknown(3, dtype=torch.int64), unknown(3), unknown(3)
        for _ in range(3):
            assert torch.gather(p, 0, i, out=q) is q
            with pytest.raises(RuntimeError, match="unsupported operation"):
                torch.gather(p, 0, i, out=p)


def test_default_dtype_beside_a_float() -> None:
    def program() -> list[Tensor]:
        integer, real, start = unknown(3, dtype=torch.int64), unknown(3), torch.tensor(0.0)
        made = []
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            made += [*torch._foreach_add([integer, real], 1.5), torch.linspace(start, start + 1, 3)]
            made += torch._foreach_sqrt([real, integer])
        torch.set_default_dtype(torch.float32)
        return made

    assert_same_again(program)


def test_known_values_where_the_host_has_no_kernel() -> None:
    with fake_mode(fake_cuda=True):
        for _ in range(3):
            x = torch.tensor([1.0, 2.0], device="cuda").to(torch.float8_e4m3fn)
            assert x.sqrt_() is x
            torch._foreach_add_([torch.ones(2, device="cuda").to(torch.float8_e4m3fn)], 1)
            assert torch.ones(3).pin_memory().tolist() == [1.0, 1.0, 1.0]


def test_copies_of_a_whole_storage() -> None:
    def program() -> list[Any]:
        sources = (unknown(4), unknown(10)[:4])
        made = [torch.as_strided_scatter(x, unknown(2), (2,), (1,)) for x in sources]
        return [t.untyped_storage().nbytes() for t in made]

    assert_same_again(program)


def test_errors_of_values_are_not_put_off() -> None:
    with fake_mode():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                torch.div(torch.arange(1, 4), 0, rounding_mode="floor")
            square = torch.arange(9.0).view(3, 3)
            with pytest.raises(RuntimeError, match="unsupported operation"):
                square.add_(square.t())


# Modes.


def test_inference_mode() -> None:
    def program() -> list[Tensor]:
        normal = unknown(4, 4)
        with torch.inference_mode():
            inner = unknown(4, 4)
            made = [t.view(16) for t in (normal, inner)] + [t + t for t in (normal, inner)]
            made += [*normal.split(2), *inner.split(2), normal.detach()]
        return made

    assert_same_again(program)


def test_autocast() -> None:
    def program() -> list[Tensor]:
        x, w = unknown(4, 4), nn.Parameter(unknown(4, 4))
        made = [x @ w]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made += [x @ w, F.linear(x, w), torch.softmax(x @ w, -1)]
            with torch.autocast("cpu", enabled=False):
                made.append(x @ w)
        return [*made, x @ w]

    assert_same_again(program)


def test_autocast_around_and_across_modes() -> None:
    """A mode hears of autocast from whoever switches it."""
    with torch.autocast("cpu"), fake_mode():
        assert (unknown(2, 2) @ unknown(2, 2)).dtype == torch.bfloat16
        with fake_mode():
            assert (unknown(2, 2) @ unknown(2, 2)).dtype == torch.bfloat16
    with fake_mode():
        x = unknown(2, 2)
        torch.set_autocast_enabled("cpu", True)
        inside = x @ x
    after = x @ x
    torch.set_autocast_enabled("cpu", False)
    assert [t.dtype for t in (inside, after, x @ x)] == [
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    ]


def test_other_classes_have_their_say() -> None:
    class Foreign(Tensor):
        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return foreign

    foreign = Tensor._make_wrapper_subclass(Foreign, (3,))
    with fake_mode():
        x = unknown(3)
        for _ in range(3):
            assert is_fake(x + x)
            assert torch.ops.aten.add.Tensor(x, foreign) is foreign


def test_custom_operators_are_asked_each_time() -> None:
    rows = iter(range(2, 9))

    @torch.library.custom_op("torchfake_test::rows", mutates_args=())
    def some_rows(x: Tensor) -> Tensor:
        return x.clone()

    @some_rows.register_fake
    def _(x: Tensor) -> Tensor:
        return x.new_empty(next(rows))

    with fake_mode():
        assert [len(some_rows(unknown(3))) for _ in range(3)] == [2, 3, 4]


def test_errors_are_raised_each_time() -> None:
    with fake_mode():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="broadcast"):
                unknown(3) + unknown(4)
            with pytest.raises(RuntimeError, match="std >= 0"):
                unknown(3).normal_(0.0, -1.0)


# What it holds.


def test_it_holds_no_tensor() -> None:
    with fake_mode():
        x, y = unknown(3), torch.ones(3)
        alive = [weakref.ref(t._fake_storage) for t in (x, y, x + y, x.view(3), y.add_(x))]
        del x, y
    gc.collect()
    assert [a() for a in alive] == [None] * len(alive)


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cache, "MAX_RECIPES", 50)
    with fake_mode():
        for length in range(200):
            assert (unknown(length) + 1).shape == (length,)
            assert _cache.count() <= 50
    forms = [form for by_form in _cache.forms.values() for form in by_form.values()]
    held = sum(len(form.recipes or form.checked) for form in forms)
    assert held == _cache.count()


def test_modes_and_threads_share_it(no_kernels: Callable[[], None]) -> None:
    with fake_mode():
        unknown(3) + unknown(3)
    no_kernels()
    made: list[Tensor] = []

    def on_thread() -> None:
        with fake_mode():
            made.append(unknown(3) + unknown(3))

    thread = threading.Thread(target=on_thread)
    thread.start()
    thread.join()
    assert made[0].shape == (3,)


def test_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """All right at once, while the table is filled and dropped under them."""
    monkeypatch.setattr(_cache, "MAX_RECIPES", 40)
    wrong: list[Any] = []

    def on_thread(seed: int) -> None:
        with fake_mode():
            for i in range(300):
                rows, columns = 1 + (i * seed) % 7, 1 + i % 5
                x = unknown(rows, columns)
                made = (x @ x.t()).relu().sum(0), torch.cat([x, x]), x.view(-1)
                shapes = [tuple(t.shape) for t in made]
                if shapes != [(rows,), (2 * rows, columns), (rows * columns,)]:
                    wrong.append((rows, columns, shapes))

    threads = [threading.Thread(target=on_thread, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# The switches.


def test_checking_finds_a_wrong_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cache.settings, "checking", True)
    with fake_mode():
        x = unknown(3)
        x + x
        x + x  # compared, and right
        (form,) = _cache.forms[id(torch.ops.aten.add.Tensor)].values()
        (recipe,) = form.checked.values()
        recipe.outcome = _recipes.Fresh(unknown(4)._fake_meta, 0)
        with pytest.raises(CacheError, match=r"aten\.add\.Tensor"):
            x + x


WRONG: dict[str, tuple[Callable[[Tensor], Any], Any, str]] = {
    "metadata": (lambda x: x + x, lambda r, x: _recipes.Fresh(unknown(4)._fake_meta, 0), "4"),
    "alias": (lambda x: x.view(3), lambda r, x: _recipes.Fresh(r.outcome.record, 0), "argument"),
    "no alias": (lambda x: x + x, lambda r, x: _recipes.View(r.outcome.record, FIRST), "no view"),
    "argument": (lambda x: x + x, lambda r, x: _recipes.Same(FIRST), "is not argument"),
    "constant": (lambda x: x.relu_(), lambda r, x: _recipes.Constant(3), "not 3"),
    "several": (lambda x: x.split(1), lambda r, x: r.outcome[:2], "not 2 results"),
}
"""Programs, and recipes that are wrong about them."""


@pytest.mark.parametrize(("program", "wrong", "says"), WRONG.values(), ids=WRONG)
def test_checking_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, program: Any, wrong: Any, says: str
) -> None:
    monkeypatch.setattr(_cache.settings, "checking", True)
    with fake_mode():
        x = unknown(3)
        program(x)
        (*_, forms) = _cache.forms.values()
        ((recipe,),) = [form.checked.values() for form in forms.values()]
        recipe.outcome, recipe.new_bytes = wrong(recipe, x), (12,)
        with pytest.raises(CacheError, match=says):
            program(x)


def test_checking_compares_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cache.settings, "checking", True)
    with fake_mode():
        torch.ones(3)
        (*_, forms) = _cache.forms.values()
        ((recipe,),) = [form.checked.values() for form in forms.values()]
        recipe.fill = recipe.fill._replace(number=2)
        with pytest.raises(CacheError, match="the value of the result"):
            torch.ones(3)


def _with_environment(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import torch; from torchfake import _cache, fake_mode\n{code}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"TORCHFAKE_CACHE": "off"}, "TORCHFAKE_CACHE is 0 or 1, not 'off'"),
        ({"TORCHFAKE_CHECK_CACHE": "yes"}, "TORCHFAKE_CHECK_CACHE is 0 or 1, not 'yes'"),
        ({"TORCHFAKE_CACHE": "0", "TORCHFAKE_CHECK_CACHE": "1"}, "nothing to check"),
    ],
)
def test_switches_that_mean_nothing(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=says):
        _cache._Settings()


COUNT = """
with fake_mode():
    x = torch.empty(3)
    for _ in range(3):
        y = x + x
import sys
sys.stdout.write(f"{_cache.count()} {_cache.settings.checking} {tuple(y.shape)}")
"""


def test_it_can_be_turned_off() -> None:
    off = _with_environment(COUNT, TORCHFAKE_CACHE="0", TORCHFAKE_CHECK_CACHE="0")
    assert off.startswith("0 ")


def test_it_can_be_checked() -> None:
    assert _with_environment(COUNT, TORCHFAKE_CHECK_CACHE="1", TORCHFAKE_CACHE="1") == "2 True (3,)"
    assert (
        _with_environment(COUNT, TORCHFAKE_CHECK_CACHE="0", TORCHFAKE_CACHE="1") == "2 False (3,)"
    )
