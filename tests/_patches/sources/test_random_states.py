"""States of generators are set from fakes of known value, and draws go on from there."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import unknown
from torchfake import deferred_init, deferred_mode, fake_mode, materialize_tensor
from torchfake.errors import UnknownValueError

_ENGINE = torch.quasirandom.SobolEngine(3)
STATE = torch.Generator().manual_seed(5).get_state()


def _set_copy(folder: Path) -> list[float]:
    torch.set_rng_state(STATE.clone())
    return torch.rand(3).tolist()


def _set_from_file(folder: Path) -> list[float]:
    torch.set_rng_state(torch.load(folder / "state.pt")["rng"])
    return torch.rand(3).tolist()


def _fork(folder: Path) -> list[float]:
    with torch.random.fork_rng():
        torch.random.set_rng_state(STATE.clone())
        forked = torch.rand(2).tolist()
    return [*forked, *torch.rand(2).tolist()]


def _set_of_generators(folder: Path) -> list[Any]:
    """Copies of a generator and of its state, however they are made."""
    first = torch.Generator()
    first.set_state(STATE.clone())
    others = [first.clone_state(), copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    torch.rand(100, generator=first)
    drawn = [torch.rand(2, generator=generator).tolist() for generator in others]
    first.set_state(copy.deepcopy(pickle.loads(pickle.dumps(STATE))))
    return [*drawn, torch.rand(2, generator=first).tolist()]


def _copy_of_global(folder: Path) -> list[Any]:
    torch.rand(100)
    drawn = torch.rand(2, generator=copy.deepcopy(torch.default_generator))
    return [drawn.tolist(), torch.rand(2).tolist()]


def _sobol(folder: Path) -> list[Any]:
    engine = torch.quasirandom.SobolEngine(3, scramble=True, seed=4)
    out = torch.zeros(0)
    drawn = [engine.draw(1), engine.draw(5), engine.fast_forward(4).draw(3, out=out), out]
    return [
        d.tolist()
        for d in [*drawn, engine.reset().draw(2, dtype=torch.float64), _drawn_from_outside(2)]
    ]


def _drawn_from_outside(n: int) -> torch.Tensor:
    return _ENGINE.reset().draw(n)


def _seed(folder: Path) -> list[float]:
    torch.manual_seed(torch.tensor(7).item())
    return torch.rand(2).tolist()


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize(
    "draw", [_set_copy, _set_from_file, _set_of_generators, _copy_of_global, _fork, _seed, _sobol]
)
def test_draws_are_those_of_eager(
    draw: Callable[[Path], Any], mode: Callable[[], Any], tmp_path: Path
) -> None:
    torch.save({"rng": STATE}, tmp_path / "state.pt")
    torch.manual_seed(0)
    expected = draw(tmp_path)
    torch.manual_seed(0)
    with mode():
        assert draw(tmp_path) == expected


def test_on_fake_cuda() -> None:
    with fake_mode(fake_cuda=True):
        torch.cuda.set_rng_state(torch.cuda.get_rng_state().clone())
        generator = torch.Generator("cuda").manual_seed(1)
        state = generator.get_state()
        first = torch.rand(3, device="cuda", generator=generator).tolist()
        generator.set_state(state.clone())
        assert torch.rand(3, device="cuda", generator=generator).tolist() == first
        with pytest.raises(UnknownValueError):
            torch.cuda.set_rng_state((unknown(16) > 0).to(torch.uint8))


def test_what_is_not_a_known_state_is_refused() -> None:
    with fake_mode(fake_cuda=True):
        with pytest.raises(UnknownValueError, match=r"set_rng_state\(\) needs the value"):
            torch.set_rng_state((unknown(STATE.numel()) > 0).to(torch.uint8))
        for wrong in (STATE.clone().float(), STATE.clone().cuda()):
            with pytest.raises(TypeError, match="must be a torch"):
                torch.set_rng_state(wrong)


def test_out_on_a_fake_device_that_is_named() -> None:
    with fake_mode(fake_device="xpu"):
        out = torch.zeros(5, device="xpu")
        assert torch.randn(5, out=out, device="xpu") is out
        with pytest.raises(RuntimeError, match=r"cpu does not match device type of out.*xpu"):
            torch.randn(5, out=out, device="cpu")


@pytest.mark.parametrize("size", [64, 30_000])
@pytest.mark.parametrize(
    "bounds",
    [
        (0.0, 0.02, -2.0, 2.0),
        (0.0, 1.0, -2.0, 2.0),
        (0.0, 1.0, -0.1, 0.1),
        (0.0, 1.0, 3.0, 4.0),
        (5.0, 1.0, -2.0, 2.0),
    ],
)
@pytest.mark.filterwarnings("ignore:mean is more than 2 std")
def test_versions_of_numbers_that_are_drawn_again(size: int, bounds: tuple[float, ...]) -> None:
    """Eager copies them into the tensor, which counts as a second write."""

    def build() -> torch.Tensor:
        torch.manual_seed(0)
        return torch.nn.init.trunc_normal_(torch.empty(size), *bounds)

    eager = build()._version
    with fake_mode():
        assert build()._version == eager
    if size > 64:  # else the numbers decide whether any is drawn again
        deferred = deferred_init(build)
        assert deferred._version == materialize_tensor(deferred)._version == eager


PARTS = {
    "each second": lambda: torch.empty(30)[::2],
    "a part": lambda: torch.empty(30)[:20],
    "a column": lambda: torch.empty(40, 40)[:, 3],
    "rows": lambda: torch.empty(6, 18)[:, ::2],
    "of zeros": lambda: torch.zeros(30)[::2],
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "bounds", [(0.0, 1.0, -2.0, 2.0), (0.0, 0.02, -2.0, 2.0), (0.0, 1.0, -1, 1)]
)
def test_truncated_normals_in_a_part_of_a_storage(part: str, bounds: tuple[float, ...]) -> None:
    """Their values are not kept, and what follows is drawn from where eager draws it."""

    def program() -> list[int]:
        torch.manual_seed(0)
        for _ in range(2):
            torch.nn.init.trunc_normal_(PARTS[part](), *bounds)
        return [*torch.randint(1000, (3,)).tolist(), *torch.get_rng_state().tolist()]

    eager = program()
    with fake_mode():
        assert program() == eager
