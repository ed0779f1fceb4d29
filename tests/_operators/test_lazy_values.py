"""Known values that are computed when they are read: those of eager, and not a moment earlier."""

from __future__ import annotations

import copy
import functools
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchfake import fake_mode
from torchfake._operators import lazy_values
from torchfake._operators.lazy_draws import LazyDraw
from torchfake._operators.lazy_values import LazyValue

MOVED: dict[str, Callable[[Any], Any]] = {
    "aten::tril": torch.tril,
    "aten::triu": lambda t: t.triu(1),
    "aten::flip": lambda t: t.flip(0),
    "aten::roll": lambda t: t.roll(1, 0),
    "aten::clone": torch.clone,
    "aten::_to_copy": lambda t: t.to(torch.complex64),
    "aten::copy_": lambda t: torch.zeros(6, 6, dtype=torch.bool).copy_(t),
    "aten::zero_": lambda t: t.clone().zero_(),
    "aten::stack": lambda t: torch.stack([t, t]),
    "aten::cat": lambda t: torch.cat([t, t]),
    "aten::eq": lambda t: t == 1,
    "aten::ne": lambda t: t != t.flip(0),
}


def table(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(36).view(6, 6).remainder(5).to(dtype)


def value_of(fake: Any) -> Any:
    return fake._fake_storage.value


@pytest.mark.parametrize("packet", sorted(lazy_values._MOVING))
@pytest.mark.parametrize("dtype", sorted(lazy_values._MOVED_DTYPES, key=str), ids=str)
def test_what_moves_elements_is_computed_when_it_is_read(packet: str, dtype: torch.dtype) -> None:
    expected = MOVED[packet](table(dtype))
    with fake_mode():
        found: Any = MOVED[packet](table(dtype))
        assert isinstance(value_of(found), LazyValue)
        assert value_of(found).value is None
        assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())


def test_causal_masks_take_no_memory_until_they_are_read() -> None:
    with fake_mode():
        masks = [torch.tril(torch.ones(1024, 1024, dtype=torch.bool)) for _ in range(4)]
        view: Any = masks[0].view(1, 1, 1024, 1024)
        assert value_of(view).value is None
        assert view[0, 0, 3, :5].tolist() == [True, True, True, True, False]
        assert value_of(masks[1]).value is None


def test_what_is_overwritten_unread_is_not_computed() -> None:
    with fake_mode():
        drawn: Any = torch.empty(50).uniform_()
        before = value_of(drawn)
        assert isinstance(before, LazyDraw)
        drawn.zero_()
        assert before.value is None
        assert drawn.tolist() == [0.0] * 50


@pytest.mark.parametrize("name", ["whole", "half", "itself", "read by another"])
def test_overwritten_as_in_eager(name: str) -> None:
    def run() -> list[Any]:
        torch.manual_seed(3)
        drawn, other = torch.empty(40).normal_(), torch.empty(7).normal_()
        kept = drawn * 2
        if name == "whole":
            drawn.copy_(torch.arange(40))
        elif name == "half":
            drawn[:20].fill_(3.0)
        elif name == "itself":
            drawn.copy_(drawn.flip(0))
        else:
            drawn.fill_(other[0])
        return [drawn.tolist(), kept.tolist(), other.tolist(), torch.rand(2).tolist()]

    expected = run()
    with fake_mode():
        assert run() == expected


def test_a_value_is_as_it_was_where_overwriting_fails() -> None:
    def run() -> list[Any]:
        torch.manual_seed(3)
        drawn = torch.empty(40).normal_()
        with pytest.raises(RuntimeError):
            drawn.copy_(torch.arange(41))
        with pytest.raises(RuntimeError):
            drawn.normal_(0.0, -1.0)
        with pytest.raises(RuntimeError):
            drawn.fill_(torch.ones(2))
        return drawn.tolist()  # type: ignore[no-any-return]

    expected = run()
    with fake_mode():
        assert run() == expected


VIEWS: list[Callable[[Any], Any]] = [
    lambda t: t,
    lambda t: t[0],
    lambda t: t[..., 1],
    lambda t: t[1:3],
    lambda t: t[:, ::2],
    lambda t: t.t(),
    lambda t: t.diagonal(),
    lambda t: t.view(-1),
    lambda t: t.view(-1)[3:7],
    lambda t: t[1:1],
    lambda t: t.expand(2, *t.shape),
    lambda t: t.unfold(0, 2, 1),
    lambda t: t.data[2],
    lambda t: t.detach()[1],
]

WRITES: list[Callable[[Any, Any], Any]] = [
    *[lambda t, _, n=name: getattr(t, f"{n}_")() for name in lazy_values._ELEMENTWISE
      if name not in ("mul", "add", "sub", "div", "clamp", "clamp_min", "clamp_max")],
    lambda t, _: t.add_(3), lambda t, _: t.mul_(-0.5), lambda t, _: t.sub_(2, alpha=3),
    lambda t, _: t.div_(3), lambda t, _: t.div_(2, rounding_mode="floor"), lambda t, _: t.pow_(2),
    lambda t, _: t.clamp_(-1, 2), lambda t, _: t.clamp_min_(0.5), lambda t, _: t.fill_(7),
    lambda t, _: t.zero_(), lambda t, _: t.tril_(), lambda t, _: t.cumsum_(0),
    lambda t, _: t.uniform_(0, 9), lambda t, _: t.normal_(),
    lambda t, o: t.copy_(o), lambda t, o: t.add_(o), lambda t, o: t.mul_(o), lambda t, o: t.div_(o),
    lambda t, o: t.sub_(o.flip(0)), lambda t, o: t.__setitem__(0, 5),
    lambda t, o: t.__setitem__((..., 0), o.sum()), lambda t, o: t.copy_(t.flip(0)),
    lambda t, o: t.copy_(t), lambda t, o: t.view(t.dtype).add_(1),
]  # fmt: skip


def made(chance: random.Random) -> Any:
    dtype = chance.choice((torch.float32, torch.float64, torch.int64, torch.int32, torch.float16))
    size = chance.choice(((4, 6), (6, 4), (5, 5)))
    if chance.random() < 0.3 and dtype.is_floating_point:
        return torch.empty(size, dtype=dtype).uniform_(0, 16)
    return torch.arange(1, 1 + size[0] * size[1]).view(size).to(dtype)


def attempt(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        return type(error).__name__


def written_program(seed: int) -> list[Any]:
    """What is read of tensors that are written in part, some of which others were made from."""
    chance, found = random.Random(seed), []
    torch.manual_seed(seed)
    tensors = [made(chance) for _ in range(3)]
    for _ in range(40):
        target, other = chance.choice(tensors), chance.choice(tensors)
        view = attempt(functools.partial(chance.choice(VIEWS), target))
        source = attempt(functools.partial(chance.choice(VIEWS), other))
        write = chance.choice(WRITES)
        if isinstance(view, torch.Tensor) and isinstance(source, torch.Tensor):
            result = attempt(functools.partial(write, view, source))
            found.append(result if isinstance(result, str) else None)
        action = chance.random()
        if action < 0.15:
            tensors[chance.randrange(3)] = target * 2
        elif action < 0.2:
            tensors[chance.randrange(3)] = copy.deepcopy(target)
        elif action < 0.35:
            found.append([bits(t) for t in tensors])
    return [*found, [bits(t) for t in tensors], torch.rand(2).tolist()]


def bits(tensor: Any) -> Any:
    """The values, in which each NaN is equal to each."""
    return str(tensor.tolist())


@pytest.mark.parametrize("seed", range(150))
def test_partly_written_as_in_eager(seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = written_program(seed)
        with fake_mode():
            assert written_program(seed) == expected


def test_what_is_partly_written_is_not_computed() -> None:
    with fake_mode():
        table: Any = torch.arange(600).view(30, 20) * 1.0
        table[:, 0::2] += 3
        table[0] = torch.arange(20).sin()
        table[:, 1].log_()
        assert isinstance(value_of(table), LazyValue)
        assert value_of(table).value is None
