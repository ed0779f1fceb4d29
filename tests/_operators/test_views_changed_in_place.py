"""Views, and tensors with views, that are given other sizes in place and written: gradients."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchfake import deferred_mode, fake_mode, materialize_tensor

CHANGES: dict[str, Callable[[Any], Any]] = {
    "t_": lambda t: t.t_(),
    "transpose_": lambda t: t.transpose_(0, 1),
    "swapdims_": lambda t: t.swapdims_(0, -1),
    "swapaxes_": lambda t: t.swapaxes_(0, 1),
    "squeeze_": lambda t: t.unsqueeze_(0).squeeze_(),
    "squeeze_ of a dim": lambda t: t.unsqueeze_(0).squeeze_(0),
    "unsqueeze_": lambda t: t.unsqueeze_(1),
    "as_strided_": lambda t: t.as_strided_((3,), (2,)),
    "set_": lambda t: torch.no_grad()(t.set_)(t.detach().t()),
    "without gradients": lambda t: torch.no_grad()(t.t_)(),
}


def weights(t: torch.Tensor) -> torch.Tensor:
    return torch.arange(1.0, t.numel() + 1).view(t.shape)


def of_a_view(change: Callable[[Any], Any]) -> Any:
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    base = x * 2
    view = base[:]
    change(view)
    view.mul_(weights(view))
    return torch.autograd.grad((base * weights(base)).sum() + view.sum(), x)[0], view


def of_a_base(change: Callable[[Any], Any]) -> Any:
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    base = x * 2
    view, row = base.view(6), base[1]
    change(base)
    row.exp_()
    return torch.autograd.grad((view * weights(view)).sum() + (base**2).sum(), x)[0], view


def of_a_base_that_is_not_written(change: Callable[[Any], Any]) -> Any:
    x = torch.arange(6.0).view(2, 3).requires_grad_()
    base = x * 2
    view = base.view(3, 2)
    change(base)
    return torch.autograd.grad((view * weights(view)).sum(), x)[0], view


def test_eager_refuses_a_base_changed_without_gradients() -> None:
    for mode in (contextlib.nullcontext, fake_mode, deferred_mode):
        with mode(), pytest.raises(RuntimeError, match="invalid gradient"):
            of_a_base(CHANGES["without gradients"])


PROGRAMS = [
    *((of_a_view, name) for name in CHANGES),
    *(
        (of_a_base, name)
        for name in CHANGES
        if name not in ("without gradients", "as_strided_", "set_")
    ),
    *(
        (of_a_base_that_is_not_written, name)
        for name in ("t_", "squeeze_", "unsqueeze_", "as_strided_")
    ),
]


@pytest.mark.parametrize(("program", "name"), PROGRAMS)
def test_gradients_are_those_of_eager(program: Any, name: str) -> None:
    expected, view = program(CHANGES[name])
    with fake_mode():
        found, fake = program(CHANGES[name])
    assert found.tolist() == expected.tolist()
    assert (fake.shape, fake.stride(), fake._version) == (view.shape, view.stride(), view._version)
    with deferred_mode():
        recorded, deferred = program(CHANGES[name])
    assert torch.equal(materialize_tensor(recorded), expected)
    assert torch.equal(materialize_tensor(deferred.detach()), view)


@pytest.mark.parametrize("name", ["t_", "squeeze_"])
def test_the_tensor_stays_the_same_object(name: str) -> None:
    with fake_mode():
        base = torch.ones(1, 1, requires_grad=True) * 2
        view = base[:]
        view.note = "mine"
        assert getattr(view, name)() is view
        assert (view.note, view._base is base) == ("mine", True)
        assert type(view.grad_fn).__name__.startswith(name[:-1].title())


def test_a_view_given_other_data_cannot_be_written_with_gradients() -> None:
    """Eager would take its strides for those of its base."""
    with fake_mode():
        base = torch.ones(2, 3, requires_grad=True) * 2
        view = base[0]
        view.data = torch.ones(2)
        assert view.sum().requires_grad
        with torch.no_grad():
            view.add_(1)
        with pytest.raises(RuntimeError, match="modified inplace"):
            view.mul_(2).sum().backward()


def test_what_is_refused_changes_nothing() -> None:
    with fake_mode():
        view = (torch.ones(2, 3, 4, requires_grad=True) * 2)[:]
        with pytest.raises(RuntimeError, match=r"t_ expects"):
            view.t_()
        assert view.shape == (2, 3, 4)


@pytest.mark.parametrize("mode", [contextlib.nullcontext, fake_mode, deferred_mode])
def test_in_inference_mode_a_view_keeps_its_history(mode: Any) -> None:
    with mode():
        view = torch.ones(4, 4, requires_grad=True).as_strided((2, 2), (2, 1))
        with torch.inference_mode():
            view.unsqueeze_(0)
        assert (view.shape, view.is_leaf) == ((1, 2, 2), False)
        assert view.grad_fn.name() == "AsStridedBackward0"


def test_objects_are_searched_only_if_there_may_be_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_referrers", None)
    with fake_mode():
        x = torch.ones(2, 3, requires_grad=True) * 2
        x.sin()  # which holds it
        x.unsqueeze_(0)
        torch.arange(3)[:].unsqueeze_(0)
