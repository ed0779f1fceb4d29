"""What is plainly not known to be finite is a question; what a healthy model computes is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.conftest import unknown
from torchfake import deferred_mode, fake_mode
from torchfake.errors import UnknownValueError

INF, NAN = float("inf"), float("nan")


def large(number: float) -> Tensor:
    return torch.full((200, 200), number)


def x() -> Tensor:
    return unknown(200, 200)


def written(write: Callable[[Tensor], Any], target: Tensor | None = None) -> Tensor:
    tensor = x() if target is None else target
    write(tensor)
    return tensor


QUESTIONS: dict[str, Callable[[], Tensor]] = {
    "logarithm of zeros": lambda: torch.zeros(200, 200).log(),
    "of a copy, and in place": lambda: torch.zeros(200, 200).double().log_(),
    "of a view": lambda: torch.zeros(200, 200)[0].log(),
    "overflow": lambda: large(1e30) * 1e30,
    "overflow of a dtype": lambda: large(1e30).half(),
    "out of the domain": lambda: torch.ones(200, 200).mul(2).acos(),
    "by the number zero": lambda: x() / 0,
    "by zeros": lambda: x() / torch.zeros(200, 200),
    "by a known zero": lambda: x() / torch.tensor([1.0] * 199 + [0.0]),
    "by zero in place": lambda: x().div_(0),
    "list by zero": lambda: torch._foreach_div([x()], 0.0)[0],
    "filled in place": lambda: x().fill_(NAN),
    "a row": lambda: written(lambda t: t[0].fill_(INF)),
    "masked in place": lambda: written(lambda t: t.masked_fill_(t > 0, -INF)),
    "masked by a tensor": lambda: x().masked_fill(x() > 0, torch.tensor(-INF)),
    "set": lambda: written(lambda t: t.__setitem__(t > 0, -INF)),
    "set by index": lambda: written(lambda t: t.__setitem__(torch.tensor([1]), INF)),
    "copied into a part": lambda: written(lambda t: t[1].copy_(large(INF)[0])),
    "a part is overwritten": lambda: written(lambda t: t[0].zero_(), large(INF)),
    "index_put": lambda: x().index_put((torch.tensor([1]),), torch.tensor(INF)),
    "index_fill": lambda: x().index_fill(0, torch.tensor([1]), INF),
    "scatter": lambda: x().scatter_(1, torch.zeros(200, 1).long(), -INF),
    "where": lambda: torch.where(x() > 0, -INF, x()),
    "where, tensor": lambda: torch.where(x() > 0, x(), large(-INF)),
    "times NaN": lambda: x() * torch.tensor(NAN),
    "times a known NaN": lambda: x() * torch.tensor([1.0] * 199 + [NAN]),
    "plus infinity": lambda: x() + INF,
    "plus a real NaN": lambda: x() + REAL,
    "multiplied in place": lambda: x().mul_(NAN),
    "list in place": lambda: written(lambda t: torch._foreach_mul_([t], NAN)),
    "full_like": lambda: torch.full_like(x(), INF),
    "scores": lambda: x()[:8, :8] + large(-INF)[:8, :8].triu(1),
    "product": lambda: x() @ large(INF),
    "layer": lambda: F.linear(x(), large(NAN)),
    "several results": lambda: large(INF).topk(3).values,
    "no row is left": lambda: torch.softmax(large(-INF), -1),
    "joined": lambda: torch.cat([x(), large(INF)]),
    "padding": lambda: F.pad(x(), (1, 1), value=-INF),
    "out": lambda: torch.mul(x(), INF, out=torch.empty(200, 200)),
    "logarithm of imaginary parts": lambda: torch.view_as_real(large(1.0) + 0j).log(),
    "by imaginary parts": lambda: x() / torch.view_as_real(large(1.0) + 0j)[..., 1],
    "roots of a negative view": lambda: (large(1.0) * (1 + 1j)).conj().imag.sqrt(),
}
REAL = torch.tensor([1.0] * 199 + [NAN])


def layer() -> Tensor:
    net = torch.nn.TransformerEncoderLayer(32, 2, batch_first=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(8)
    out: Tensor = net(unknown(2, 8, 32), src_mask=mask)
    return out


def weight_after_a_step() -> Tensor:
    net = torch.nn.Linear(200, 200)
    optimizer = torch.optim.Adam(net.parameters())
    net(x()).sum().backward()
    optimizer.step()
    return net.weight.detach()


ASSUMED: dict[str, Callable[[], Tensor]] = {
    "sum": lambda: torch.zeros(200, 200) + x(),
    "quotient": lambda: x() / x(),
    "parts of a complex number": lambda: torch.view_as_real(large(1.0) * (2 + 1j)).sqrt(),
    "by ones": lambda: x() / torch.ones(200, 200),
    "attention that is masked": layer,
    "scores that are masked": lambda: torch.softmax(x().masked_fill(x() > 0, -INF), -1),
    "a causal mask": lambda: torch.softmax(x() + large(-INF).triu(1), -1),
    "overwritten": lambda: large(INF).copy_(x()),
    "drawn": lambda: large(INF).normal_(),
    "filled again": lambda: large(INF).fill_(1.0),
    "shape alone": lambda: torch.empty_like(large(INF)),
    "replaced": lambda: torch.nan_to_num(x() * INF),
    "order of a norm": lambda: x().norm(p=INF),
    "open bound": lambda: x().clamp(min=-INF),
    "a step": weight_after_a_step,
}


def ask_all(made: Tensor) -> list[bool]:
    return [not bool(made.isinf().any()), not bool(made.isnan().any()), bool(made.isfinite().all())]


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_plainly_not_known_is_a_question(name: str) -> None:
    for _ in range(2):  # the second time, from the cache
        with fake_mode():
            made = QUESTIONS[name]()
            for ask in (torch.isinf, torch.isnan, torch.isfinite):
                asked = ask(made)
                if not asked._fake_storage.is_known:  # type: ignore[attr-defined]
                    with pytest.raises(UnknownValueError):
                        bool(asked.any())


@pytest.mark.parametrize("name", ASSUMED)
def test_what_a_healthy_model_computes_is_assumed_to_be_finite(name: str) -> None:
    for _ in range(2):
        with fake_mode():
            assert ask_all(ASSUMED[name]()) == [True] * 3


def test_an_outcome_that_was_recorded_first_is_marked_too() -> None:
    with deferred_mode():
        torch.full((201, 7000), INF)
        torch.empty(201, 7000).fill_(NAN)
    with fake_mode():
        made = torch.full((201, 7000), INF), torch.empty(201, 7000).fill_(NAN)
        for tensor in made:
            with pytest.raises(UnknownValueError):
                bool(tensor.isfinite().all())


@pytest.mark.parametrize("part", [torch.real, torch.imag, torch.view_as_real])
def test_parts_of_complex_numbers_are_not_what_all_were_filled_with(
    part: Callable[[Tensor], Tensor],
) -> None:
    with fake_mode():
        assert ask_all(part(torch.full((200, 200), 2 + 1j)) * 2) == [True] * 3


def test_known_values_that_are_written_later_count_as_they_are() -> None:
    with fake_mode():
        scale = torch.ones(3)
        product = unknown(3) * scale
        assert ask_all(product) == [True] * 3
        scale[0] = NAN
        with pytest.raises(UnknownValueError):
            ask_all(unknown(3) * scale)
        scale[0] = 1.0
        assert ask_all(unknown(3) * scale) == [True] * 3


def test_draws_that_nobody_has_read_are_not_made_for_it() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2), torch.rand(2)
    torch.manual_seed(0)
    with fake_mode():
        first = torch.rand(2)
        assert ask_all(unknown(2) * first) == [True] * 3
        second = torch.rand(2)
        assert [second.tolist(), first.tolist()] == [expected[1].tolist(), expected[0].tolist()]
