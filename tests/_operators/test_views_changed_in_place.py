"""Views, and tensors with views, that are given other sizes in place and written: gradients."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from functools import partial
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


DATA: dict[str, Callable[[Any, Any], Any]] = {
    "a view, other sizes": lambda base, view: _give(view, torch.ones(2, 2)),
    "a view, its own": lambda base, view: _give(view, view.data.view(3, 1)),
    "a view, other strides": lambda base, view: _give(view, base.data.t()[1]),
    "a view, another dtype": lambda base, view: _give(view, torch.ones(3).double()),
    "a base, other strides": lambda base, view: _give(base, torch.ones(3, 2).t()),
    "a base, more rows": lambda base, view: _give(base, torch.ones(4, 3)),
    "a base, fewer rows": lambda base, view: _give(base, base.data[:1]),
}
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda base, view: None,
    "the view": lambda base, view: view.mul_(weights(view)),
    "the base": lambda base, view: base.mul_(weights(base)),
    "without gradients": lambda base, view: torch.no_grad()(view.mul_)(2),
}


def _give(tensor: Any, data: Any) -> None:
    tensor.data = data


def gradient_after_data(given: str, written: str, used: int, *, is_written_before: bool) -> Any:
    x = torch.arange(1.0, 7.0).view(2, 3).requires_grad_()
    base = x * 2
    view = base[0]
    if is_written_before:
        base.mul_(3)
    DATA[given](base, view)
    WRITES[written](base, view)
    tensor = (base, view)[used]
    (gradient,) = torch.autograd.grad((tensor * weights(tensor)).sum(), x)
    assert view._base is base
    return gradient


def _or_error(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RuntimeError:
        return None


@pytest.mark.parametrize("is_written_before", [False, True])
@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("written", WRITES)
@pytest.mark.parametrize("given", DATA)
def test_after_data_gradients_are_those_of_eager(
    given: str, written: str, used: int, is_written_before: bool
) -> None:
    program = partial(gradient_after_data, given, written, used)
    expected = _or_error(lambda: program(is_written_before=is_written_before))
    for mode in (fake_mode, deferred_mode):
        with mode():
            found = _or_error(lambda: program(is_written_before=is_written_before))
        assert (found is None) == (expected is None)
        if found is not None:
            values = found if mode is fake_mode else materialize_tensor(found)
            assert values.tolist() == expected.tolist()


def test_a_view_given_more_data_than_its_base_has_cannot_be_written_with_gradients() -> None:
    """Eager gives some gradient."""
    with fake_mode():
        view = (torch.ones(2, 3, requires_grad=True) * 2)[0]
        view.data = torch.ones(7)
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


def test_for_data_of_parameters_objects_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_referrers", None)
    with fake_mode():
        layer = torch.nn.Linear(2, 3)
        views = [parameter.view(-1) for parameter in layer.parameters()]
        layer.half()
        layer.weight.data = torch.ones(6)
        x = torch.ones(2, requires_grad=True) * 2
        rows = x[:1]
        x.data = x.data.double()
    assert (len(views), rows.shape) == (2, (1,))


OF_ANOTHER_DTYPE: dict[str, Callable[[Any], Any]] = {
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "view_as_real": torch.view_as_real,
    "view_as_complex": lambda x: torch.view_as_complex(torch.view_as_real(x) * 1),
    "unsqueezed": lambda x: x.imag.unsqueeze(0),
    "conj": lambda x: x.conj(),
    "imag of conj": lambda x: x.conj().imag,
}
CHANGES_OF_VIEWS: dict[str, Callable[[Any], Any]] = {
    "data": lambda v: setattr(v, "data", v.data.clone()),
    "unsqueeze_": lambda v: v.unsqueeze_(0),
    "squeeze_": lambda v: v.squeeze_(),
    "transpose_": lambda v: v.transpose_(0, -1),
}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("change", CHANGES_OF_VIEWS)
@pytest.mark.parametrize("name", OF_ANOTHER_DTYPE)
def test_views_of_another_dtype(name: str, change: str, written: bool) -> None:
    def program() -> tuple[Any, ...]:
        x = torch.view_as_complex(torch.arange(6.0).view(3, 2)).requires_grad_()
        view = OF_ANOTHER_DTYPE[name](x * 1)
        CHANGES_OF_VIEWS[change](view)
        if written:
            view.mul_(3)
        history = "" if written else type(view.grad_fn).__name__  # eager names no view of views
        try:
            gradient = torch.autograd.grad((view * 2).abs().sum(), x)[0]
        except RuntimeError as error:  # of a view of other sizes than eager replays
            return history, view.dtype, view.stride(), str(error)
        return history, view.dtype, view.stride(), torch.view_as_real(gradient).tolist()

    expected = program()
    with fake_mode():
        assert program() == expected


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", OF_ANOTHER_DTYPE)
def test_a_view_of_another_dtype_is_set(name: str, mode: Any) -> None:
    def program(given: Callable[[Any], tuple[Any, ...]]) -> tuple[Any, ...]:
        view = OF_ANOTHER_DTYPE[name](torch.ones(3, dtype=torch.cfloat))
        view.set_(*given(view))
        return view.dtype, view.size(), view.stride(), (view * 1).dtype, view.nbytes

    for given in (
        lambda view: (view.clone(),),
        lambda view: (torch.ones(2, dtype=view.dtype).untyped_storage(), 0, (2,), (1,)),
    ):
        expected = program(given)
        with mode():
            assert program(given) == expected


@torch.no_grad()
def changed(change: Callable[[Any], Any], tensor: Any) -> None:
    change(tensor)


@pytest.mark.parametrize("changed_one", ["view", "base"])
@pytest.mark.parametrize("name", [name for name in CHANGES if name != "set_"])
def test_a_view_of_a_leaf_that_is_a_view_loses_its_gradients_alone(
    name: str, changed_one: str
) -> None:
    def run() -> Any:
        base = torch.arange(8.0).view(4, 2).clone()
        leaf = base[1:].requires_grad_()
        view = leaf.view(2, 3)
        changed(CHANGES[name], view if changed_one == "view" else base)
        found = view.requires_grad, view.is_leaf, view._is_view(), view.shape, view.grad_fn.name()
        view.sum().backward()
        with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
            view.mul_(2)
        return found, leaf.grad, leaf.is_leaf, view.tolist()

    expected = run()
    for mode in (fake_mode, deferred_mode):
        with mode():
            assert run() == expected
