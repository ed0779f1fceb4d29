"""Live graphs, and sequence numbers of graph nodes."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from torchfake._torch import autograd


def test_is_in_live_graph() -> None:
    """A leaf is in a graph until the result is deleted."""
    leaf = torch.nn.Parameter(torch.ones(2))
    assert not autograd.is_in_live_graph(leaf)
    result = leaf * 2
    assert autograd.is_in_live_graph(leaf)
    del result
    assert not autograd.is_in_live_graph(leaf)
    assert not autograd.is_in_live_graph(torch.ones(2))


def test_version_counters() -> None:
    """They can be set; views, detached tensors and parameters share them, ``data`` does not."""
    base = torch.zeros(3)
    base.add_(1)
    assert autograd.version_of(base) == 1
    autograd.set_version(base, 7)
    assert base._version == 7
    for shared in (base[1:], base.detach(), torch.nn.Parameter(base)):
        assert autograd.share_version_counter(base, shared)
    assert not autograd.share_version_counter(base, base.data)
    assert not autograd.share_version_counter(base, torch.zeros(3).add_(0))
    assert base._version == 7
    counter = autograd.version_counter_of(base)
    assert autograd.share_version_counter(base, counter)
    assert counter.untyped_storage().nbytes() == 0
    with torch.inference_mode():
        assert autograd.version_of(torch.zeros(3)) is None


def test_views_that_autograd_forbids() -> None:
    base = torch.nn.Parameter(torch.zeros(4))
    first, _ = base.chunk(2)
    with torch.no_grad():
        second = base[2:]
    assert not autograd.is_forbidden_view(first)
    with torch.no_grad():
        base.add_(1)
    for view in (first, second):
        assert autograd.is_forbidden_view(view)
        assert autograd.history_of(view) is None
        assert autograd.gradient_of(view) is None
    another = torch.nn.Parameter(torch.zeros(4))
    with torch.no_grad():
        another.add_(1)
    like = autograd.view_like(another, first)
    assert autograd.is_forbidden_view(like)
    assert like._base is another
    assert like.requires_grad
    assert another._version == 1


def test_a_view_that_is_older_than_a_write() -> None:
    """It has no history yet, and has one as soon as its base requires a gradient."""
    for is_older in (False, True):
        base, another = torch.zeros(4), torch.zeros(4).add_(1)
        view = base[:]
        if is_older:
            base.add_(1)
        made = autograd.view_like(another, view)
        another.requires_grad_()
        assert (made.grad_fn is not None) == is_older


def test_sequence_numbers() -> None:
    """Nodes are numbered as they are created; a hook sees the number of the running node."""
    x = torch.ones(2, requires_grad=True)
    first = autograd.next_sequence_number()
    y = x * 2
    assert autograd.next_sequence_number() == first + 1
    seen: list[int | None] = []
    y.register_hook(lambda _: seen.append(autograd.running_sequence_number()))
    (y.exp() + y.sin()).sum().backward()
    assert seen == [first]
    assert autograd.running_sequence_number() is None
    assert autograd.is_later(y.grad_fn, first)
    assert not autograd.is_later(y.grad_fn, first + 1)
    assert not autograd.is_later(x.grad_fn, 0)


def test_going_backward() -> None:
    seen: list[bool] = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _: seen.append(autograd.is_going_backward()))
    x.sum().backward()
    assert seen == [True]
    assert not autograd.is_going_backward()


def test_numbers_of_leaf_nodes() -> None:
    """AccumulateGrad nodes have numbers of their own range."""
    x = torch.ones(2, requires_grad=True)
    seen: list[int | None] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(autograd.running_sequence_number())
            return func(*args, **(kwargs or {}))

    y = x.expand(3, 2)
    with Watch():
        y.sum().backward()
    numbers = [number for number in seen if number is not None]
    assert any(number >= autograd.FIRST_LEAF_NUMBER for number in numbers)
    assert any(number < autograd.FIRST_LEAF_NUMBER for number in numbers)


def test_needs_gradient() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert autograd.needs_gradient(leaf)
    assert not autograd.needs_gradient(torch.ones(2))
    with torch.no_grad():
        assert not autograd.needs_gradient(leaf)
    with torch.autograd.forward_ad.dual_level():
        assert autograd.needs_gradient(torch.ones(2))


def test_is_transformed() -> None:
    seen = []
    torch.func.grad(lambda x: seen.append(autograd.is_transformed(x)) or x)(torch.ones(()))
    assert seen == [True]
    assert not autograd.is_transformed(torch.ones(()))


def test_without_levels() -> None:
    seen = []
    rows = torch.ones(2, 3)
    torch.func.vmap(torch.func.grad(lambda x: seen.append(autograd.without_levels(x)) or x.sum()))(
        rows
    )
    assert not autograd.is_transformed(seen[0])
    assert seen[0].shape == (2, 3)


def test_in_outer_level() -> None:
    found = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        with autograd.in_outer_level():
            found.append(autograd.is_transformed(torch.ones(()).clone()))
        return x

    torch.func.grad(inner)(torch.ones(()))
    assert found == [False]


def test_is_mapped() -> None:
    seen = []
    torch.func.vmap(lambda x: seen.append(autograd.is_mapped(x)) or x)(torch.ones(2))
    assert seen == [True]
    assert not autograd.is_mapped(torch.ones(2))


def test_with_inner_tensor() -> None:
    rows, other, seen = torch.zeros(2, 3), torch.ones(2, 3), []

    def outer(x: torch.Tensor) -> torch.Tensor:
        def inner(s: torch.Tensor) -> torch.Tensor:
            made = autograd.with_inner_tensor(x, lambda real: seen.append(real) or other)
            assert autograd.without_levels(made) is other
            return (s * made).sum()

        return torch.func.grad(inner)(torch.ones(()))

    assert torch.func.vmap(outer)(rows).tolist() == [3, 3]
    assert seen[0] is rows


def test_is_functionalized() -> None:
    seen = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        seen.append(autograd.is_functionalized(x))
        return x.sum()

    torch.func.grad(inner)(torch.ones(2))
    torch.func.functionalize(torch.func.grad(inner))(torch.ones(2))
    assert seen == [False, True]
    assert not autograd.is_functionalized(torch.ones(2))


def test_saved_by_running_node() -> None:
    """In a hook, with the history that the tensors had."""
    leaf = torch.ones(2, requires_grad=True)
    product = leaf.prod()
    saved = []
    hook = product.grad_fn.register_hook(
        lambda *_: saved.extend(autograd.saved_by_running_node("self", "result"))
    )
    torch.autograd.grad(product, leaf, create_graph=True)
    hook.remove()
    assert saved[0] is leaf
    assert saved[1].grad_fn is product.grad_fn


def test_a_checkpoint_hands_out_what_is_saved_once() -> None:
    found = []

    def product(x: torch.Tensor) -> torch.Tensor:
        result = x.prod()
        result.grad_fn.register_hook(
            lambda *_: found.append(autograd.saved_by_running_node("self", "result"))
        )
        return result.sin()

    leaf = torch.ones(2, requires_grad=True)
    checkpoint(product, leaf, use_reentrant=False).backward()
    assert found == [[]]


def test_what_the_running_node_has_saved_while_it_computes() -> None:
    seen: list[torch.Tensor] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.extend(autograd.saved_by_running_node_of("NativeGroupNormBackward0", "input"))
            assert autograd.saved_by_running_node_of("OtherBackward0", "input") == []
            return func(*args, **(kwargs or {}))

    x = torch.randn(2, 4, 3, 3, requires_grad=True)
    result = torch.nn.functional.group_norm(x, 2)
    with Seeing():
        torch.autograd.grad(result.sum(), x)
    assert any(each is x for each in seen)
    assert autograd.saved_by_running_node_of("NativeGroupNormBackward0", "input") == []


def test_what_the_engine_holds_of_a_tensor() -> None:
    leaf = torch.nn.Parameter(torch.ones(2))
    with autograd.examining():
        assert autograd.standing_of(leaf) == autograd.Standing()
    loss = (leaf * leaf).sum()
    with autograd.examining():
        assert autograd.standing_of(leaf).is_in_live_graph
        assert autograd.standing_of(loss).history is loss.grad_fn
    loss.backward()
    del loss
    with autograd.examining():
        history, gradient, is_in_live_graph = autograd.standing_of(leaf)
    assert (history, is_in_live_graph) == (None, False)
    assert gradient is leaf.grad


def test_is_in_transform() -> None:
    seen = []

    def squared(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        assert autograd.is_in_transform(x)
        return x * x

    torch.func.grad(squared)(torch.ones(()))
    assert not autograd.is_in_transform(seen[0])
    assert not autograd.is_in_transform(torch.ones(()))


def test_whether_transforms_are_running() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(autograd.are_transforms_running())
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    assert seen == [True]
    assert not autograd.are_transforms_running()


def test_writes_are_counted() -> None:
    base = torch.zeros(3)
    autograd.count_writes(base[1:], 2)
    assert base._version == 2


def test_the_innermost_transform_is_seen() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(autograd.innermost_transform() is None)
        return x.sin()

    torch.func.vmap(function)(torch.ones(3))
    assert seen == [False]
    assert autograd.innermost_transform() is None


def test_the_device_expected_at_a_node() -> None:
    leaf = torch.ones(2, requires_grad=True)
    product = (leaf * torch.ones(2)).grad_fn
    ((accumulation, index), _) = product.next_functions
    assert autograd.device_expected_at(product, 0) == torch.device("cpu")
    assert autograd.device_expected_at(accumulation, index) == torch.device("cpu")
    on_meta = (torch.ones(2, device="meta", requires_grad=True) * 2).grad_fn
    assert autograd.device_expected_at(on_meta, 0) == torch.device("meta")


def test_objects_are_exchanged_with_their_history() -> None:
    base = torch.ones(2, 3, requires_grad=True) * 2
    view, other = base[0], base.t()
    assert autograd.exchange(view, other)
    assert (view.shape, other.shape) == ((3, 2), (3,))
    assert type(view.grad_fn).__name__ == "TBackward0"
    assert view._base is base
    watched = torch._C._WeakTensorRef(base)
    assert not autograd.exchange(base, other)
    assert base.shape == (2, 3)
    del watched


def test_writes_are_allowed_as_to_another_view() -> None:
    first, second = (torch.ones(2, requires_grad=True) * 2)[:], (torch.ones(2) * 2)[:]
    autograd.forbid_writes(second)
    autograd.allow_as(first, second)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        first.mul_(2)


def test_nodes_of_another_name() -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * 2

    x = torch.ones(2, requires_grad=True)
    y = autograd.with_nodes_named("ViewBackward0", Same).apply(x)
    assert (y.grad_fn.name(), type(y.grad_fn).__name__) == ("ViewBackward0",) * 2
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2, 2]
    assert Same.apply(x).grad_fn.name() == "SameBackward"  # type: ignore[no-untyped-call]
