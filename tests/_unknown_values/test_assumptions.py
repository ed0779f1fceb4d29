"""Unknown values are assumed to be finite, and what decides a result alone is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import unknown
from torchfake import fake_mode
from torchfake._unknown_values import finiteness
from torchfake.errors import UnknownValueError

FINITE: dict[str, Callable[[Tensor], Any]] = {
    "isnan": lambda t: bool(t.isnan().any()),
    "isinf": lambda t: t.isinf().any().item(),
    "isfinite": lambda t: bool(torch.isfinite(t).all()),
    "not isfinite": lambda t: bool(~t.isfinite().all()),
    "of one number": lambda t: bool(torch.isnan(t.sum())),
    "either": lambda t: bool(torch.logical_or(t.norm().isnan(), t.norm().isinf())),
    "written": lambda t: bool(t.isnan().logical_or_(t.isinf()).any()),
    "rows": lambda t: t.view(2, 3).isfinite().all(dim=1).tolist(),
    "keepdim": lambda t: t.view(2, 3).isposinf().any(1, keepdim=True).any().item(),
    "counted": lambda t: int(t.isfinite().sum()),
    "compared": lambda t: bool(t.isneginf().sum() == 0),
    "collected": lambda t: bool(torch.stack([t.isnan().any(), t.isinf().any()]).any()),
    "collected in a known": lambda t: bool(torch.tensor(False) | t.isnan().any()),
    "as a number": lambda t: float(t.isinf().any().float()),
    "views": lambda t: bool(t.isnan().view(2, 3)[0, 1]),
    "double": lambda t: bool(t.double().isfinite().all().cpu()),
    "not known either": lambda t: bool((t.isnan() & (t > 0)).any()),
}


@pytest.mark.parametrize("name", FINITE)
def test_whether_values_are_finite_is_answered_and_listed(name: str) -> None:
    expected = FINITE[name](torch.arange(6.0))
    with fake_mode() as mode:
        assert [FINITE[name](unknown(6)) for _ in range(3)] == [expected] * 3
    assert {a.answered_by for a in mode.answers} == {"finiteness"}
    assert sum(a.times for a in mode.answers) == 3


def test_of_known_values_the_answer_is_eagers() -> None:
    with fake_mode() as mode:
        known = torch.tensor([1.0, float("nan")])
        assert bool(known.isnan().any())
        assert not bool(known.isfinite().all())
        assert known.isinf().tolist() == [False, False]
    assert not mode.answers


def test_of_a_tensor_of_any_size() -> None:
    with fake_mode():
        assert bool(torch.empty(1 << 20, 1 << 20).isfinite().all())


def test_what_is_assumed_decides_no_shape() -> None:
    with fake_mode():
        x = unknown(6)
        for select in (lambda: x[x.isnan()], lambda: x.isnan().nonzero(), lambda: x.isnan() * x):
            with pytest.raises(UnknownValueError):
                select().tolist()


def test_what_is_assumed_is_forgotten_when_it_is_written() -> None:
    with fake_mode():
        x = unknown(6)
        bad = x.isnan()
        view = bad[:2]
        bad.copy_(x > 0)
        with pytest.raises(UnknownValueError):
            view.tolist()
        bad.fill_(True)
        assert view.tolist() == [True, True]


ABSORBED: dict[str, Callable[[Tensor], Any]] = {
    "or": lambda t: (t | torch.tensor([True] * 3)).tolist(),
    "or, other side": lambda t: (torch.ones(3, dtype=torch.bool) | t).tolist(),
    "and": lambda t: (t & torch.zeros(3, dtype=torch.bool)).tolist(),
    "logical": lambda t: torch.logical_or(t, torch.ones(3)).tolist(),
    "written": lambda t: torch.zeros(3, dtype=torch.bool).logical_and_(t).tolist(),
    "product of integers": lambda t: (t.long() * torch.zeros(3, dtype=torch.long)).tolist(),
    "broadcast": lambda t: (t.expand(2, 3) | torch.ones(1, dtype=torch.bool)).tolist(),
    "finished": lambda t: bool((torch.ones(3).long() & ~(t | torch.tensor(True))).max() == 0),
}


@pytest.mark.parametrize("name", ABSORBED)
def test_a_result_that_one_argument_decides_is_known(name: str) -> None:
    expected = ABSORBED[name](torch.tensor([True, False, True]))
    with fake_mode() as mode:
        assert [ABSORBED[name](unknown(3) > 0) for _ in range(2)] == [expected] * 2
    assert not mode.answers


NOT_ABSORBED: dict[str, Callable[[Tensor], Any]] = {
    "or with False": lambda t: t | torch.zeros(3, dtype=torch.bool),
    "or with some": lambda t: t | torch.tensor([True, False, True]),
    "and with True": lambda t: t & torch.ones(3, dtype=torch.bool),
    "bits": lambda t: t.long() | torch.ones(3, dtype=torch.long),
    "product of floats": lambda t: t.float() * torch.zeros(3),
}


@pytest.mark.parametrize("name", NOT_ABSORBED)
def test_a_result_that_both_arguments_decide_is_not_known(name: str) -> None:
    with fake_mode(), pytest.raises(UnknownValueError):
        NOT_ABSORBED[name](unknown(3) > 0).tolist()


def test_a_gradient_scaler_steps_and_grows() -> None:
    def train() -> list[float]:
        net = torch.nn.Linear(300, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        scales = []
        for _ in range(3):
            scaler.scale(net(torch.ones(2, 300)).sum()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    expected = train()
    with fake_mode() as mode:
        assert train() == expected == [4.0, 8.0, 8.0]
    assert "aten._amp_update_scale_.default" in {a.asked_by for a in mode.answers}


def test_a_layer_that_asks_runs_as_fast_from_the_cache() -> None:
    """A hit has the value without a kernel, and a view of it too."""
    with fake_mode():
        for _ in range(3):
            found = unknown(4, 5).isinf()[1].any()
            assert found.item() is False


INFINITE: dict[str, Callable[[], Tensor]] = {
    "full": lambda: torch.full((200, 200), float("-inf")),
    "of NaN": lambda: torch.full((200, 200), float("nan")),
    "a row": lambda: torch.full((200, 200), float("inf"))[0],
    "masked": lambda: unknown(6).masked_fill(unknown(6) > 0, float("-inf")),
    "computed": lambda: (torch.full((200, 200), float("inf")) * 2).clone().double(),
}


@pytest.mark.parametrize("name", INFINITE)
def test_what_was_filled_with_infinity_is_not_assumed_to_be_finite(name: str) -> None:
    for ask in (torch.isinf, torch.isnan, torch.isfinite):
        for _ in range(2):
            with fake_mode(), pytest.raises(UnknownValueError):
                bool(ask(INFINITE[name]()).any())


def test_arguments_of_an_operator_on_lists_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not once for each of its results: optimizers update hundreds of parameters in one call."""
    seen: list[int] = []
    look = finiteness._mark_of_tensors
    monkeypatch.setattr(
        finiteness, "_mark_of_tensors", lambda tensors: seen.append(len(tensors)) or look(tensors)
    )
    with fake_mode():
        tensors = [unknown(6) for _ in range(50)]
        seen.clear()
        torch._foreach_add_(tensors, tensors)
        torch._foreach_sqrt(tensors)
        assert sum(seen) <= 6 * 50
        nan = torch.full((6,), float("nan"))
        torch._foreach_mul_(tensors, [nan] * 50)
        for tensor in tensors:
            with pytest.raises(UnknownValueError):
                bool(tensor.isnan().any())
