"""Draws in a mode are eager's, wherever they stand in the program, and whatever is saved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from tests._random.draw_programs import (
    FACTORIES,
    FILLS,
    FLOATS,
    GLOBAL,
    OUT,
    Program,
    digest,
    run_program,
)
from tests.conftest import generators_stand_still, unknown
from torchfake import deferred_init, deferred_mode, fake_mode, materialize_module


def _same_as_eager(seed: int, mode: Any) -> tuple[Program, Program]:
    eager, ours = run_program(seed), run_program(seed, mode)
    assert ours.read == eager.read, f"program {seed}: {ours.log}"
    return eager, ours


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_programs_that_draw_read_what_eager_reads(first: int) -> None:
    """The global generator stays in the state that was set last."""
    for seed in range(first, first + 8):
        _, ours = _same_as_eager(seed, fake_mode)
        assert torch.equal(torch.get_rng_state(), ours.bases[ours.base])


def test_recorded_programs_read_what_eager_reads() -> None:
    """The global generator is where eager leaves it."""
    for seed in range(100, 105):
        eager, _ = _same_as_eager(seed, deferred_mode)
        assert torch.equal(torch.get_rng_state(), eager.states[-1][0])


def _draw(kind: str, name: str, size: int, dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(1)
    torch.randn(3)  # leaves a normal number for later
    if kind == "fill":
        FILLS[name](torch.zeros(size, dtype=dtype), None)
    elif kind == "factory":
        FACTORIES[name](size, dtype, None)
    elif kind == "out":
        is_integer = name.startswith("randint") or name == "randperm"
        OUT[name](size, torch.zeros(size, dtype=torch.int64 if is_integer else dtype))
    else:
        GLOBAL[name](size, dtype)
    return [digest(torch.get_rng_state()), torch.randn(2).tolist()]


KINDS = {"fill": FILLS, "factory": FACTORIES, "out": OUT, "global": GLOBAL}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names]
)
def test_each_draw_takes_its_place(kind: str, name: str) -> None:
    """Twice in a mode: from the kernel, and from the cache."""
    for size, dtype in zip((17, 65, 100), FLOATS, strict=False):
        if name.startswith("trunc") or kind == "out":
            dtype = torch.float32
        expected = _draw(kind, name, size, dtype)
        with fake_mode():
            assert [_draw(kind, name, size, dtype) for _ in range(2)] == [expected] * 2


def test_fork_rng_goes_back_to_where_it_was() -> None:
    def program() -> list[float]:
        first = torch.rand(2)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            forked = torch.rand(2)
        return [*first.tolist(), *forked.tolist(), *torch.rand(2).tolist()]

    torch.manual_seed(4)
    expected = program()
    torch.manual_seed(4)
    with generators_stand_still(), fake_mode():
        assert program() == expected


def test_large_draws_are_jumped_over() -> None:
    """A billion numbers, and as many that are rejected nowhere, before one that is read."""
    torch.manual_seed(0)
    with fake_mode():
        nn.init.trunc_normal_(torch.empty(1 << 15, 1 << 15), std=0.02)
        torch.empty(1 << 15, 1 << 15).uniform_()
        far = torch.rand(1).item()
    assert 0 <= far < 1


def test_many_draws_that_nobody_reads_do_not_pile_up() -> None:
    def program() -> list[float]:
        torch.manual_seed(0)
        kept = [torch.rand(1), *(torch.rand(3) for _ in range(700))][::300]
        for _ in range(300):
            torch.randn(3)
            torch.randn(80)
        return [torch.rand(1).item(), *(k[0].item() for k in kept)]

    expected = program()
    with fake_mode():
        assert program() == expected


def test_threads_of_a_mode_share_a_lazy_generator() -> None:
    def program() -> list[float]:
        torch.manual_seed(0)
        with ThreadPoolExecutor(1) as pool:
            return [torch.rand(1).item(), pool.submit(torch.rand, 1).result().item(),
                    torch.rand(1).item()]  # fmt: skip

    expected = program()
    with fake_mode():
        assert program() == expected


def test_real_tensors_are_drawn_where_eager_draws_them() -> None:
    real, expected = torch.empty(4), torch.empty(4)
    torch.manual_seed(2)
    first, last = torch.rand(3).tolist(), (expected.normal_(), torch.rand(3).tolist())[1]
    torch.manual_seed(2)
    with fake_mode():
        drawn = torch.rand(3)
        real.normal_()
        assert [drawn.tolist(), torch.rand(3).tolist()] == [first, last]
    assert torch.equal(real, expected)


def test_a_deferred_mode_inside_another_goes_on_from_it() -> None:
    def program(build: Any) -> list[Any]:
        torch.manual_seed(0)
        first = torch.rand(3)
        module = build(nn.Linear, 3, 4)
        return [first.tolist(), module, torch.rand(3).tolist()]

    first, eager, last = program(lambda cls, *args: cls(*args))
    with fake_mode():
        ours = program(deferred_init)
    assert [ours[0], ours[2]] == [first, last]
    assert torch.equal(materialize_module(ours[1]).weight, eager.weight)


def test_a_plain_mode_inside_a_deferred_one_takes_its_place() -> None:
    def program(mode: Any) -> Any:
        torch.manual_seed(0)
        with mode():
            torch.nn.Linear(30, 4)
        return torch.nn.Linear(3, 4)

    with deferred_mode():
        ours = program(fake_mode)
    torch.manual_seed(0)
    torch.nn.Linear(30, 4)
    assert torch.equal(materialize_module(ours).weight, torch.nn.Linear(3, 4).weight)


def test_draws_without_values_in_all_of_their_arguments_raise_nothing() -> None:
    """How far ``poisson`` of unknown rates moves the generator, nobody can tell."""
    with fake_mode():
        torch.poisson(unknown(3).abs())
        with pytest.warns(UserWarning, match="differ from eager's"):
            assert 0 <= torch.rand(1).item() < 1


def _of_device(device: str) -> list[Any]:
    module = torch.get_device_module(device)
    torch.manual_seed(1)
    first = torch.rand(3, device=device).tolist()
    torch.nn.functional.dropout(torch.ones(1000, device=device))
    state = module.get_rng_state()
    drawn = [torch.rand(3, device=device).tolist()]
    with torch.random.fork_rng(devices=[0], device_type=device):
        module.set_rng_state(state)
        drawn.append(torch.rand(3, device=device).tolist())
        module.manual_seed(1)
        drawn.append(torch.rand(3, device=device).tolist())
    after = torch.rand(3, device=device)
    module.set_rng_state(state.clone())
    again = [torch.rand(3, device=device).tolist(), torch.rand(3, device=device).tolist()]
    return [first == drawn[2], drawn[0] == drawn[1] == again[0], again[1] == after.tolist()]


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_draws_on_fake_devices_follow_the_generator_of_the_device(device: str) -> None:
    with fake_mode(fake_device=device):
        cpu = torch.get_rng_state()
        torch.rand(3, device=device), torch.randn(1000, device=device)
        assert torch.equal(torch.get_rng_state(), cpu)
        assert _of_device(device) == [True, True, True]
