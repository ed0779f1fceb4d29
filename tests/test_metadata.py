"""Metadata in the cases that are hard to get right: changed in place, shared, viewed, swapped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import describe_tensor
from torchfake import fake_like, fake_mode, is_fake


def shown(*tensors: Tensor) -> list[Any]:
    """What the tensors show, who is whose view, and which share memory."""
    keys = [t.untyped_storage()._cdata for t in tensors]
    return [
        (
            describe_tensor(t),
            t._version,
            t._is_view(),
            keys.index(key),
            t.untyped_storage().nbytes(),
        )
        for t, key in zip(tensors, keys, strict=True)
    ]


def assert_same(program: Callable[[], Any]) -> None:
    """The tensors of `program` show the same in eager, in a mode, and for fakes after the mode."""
    expected = shown(*program())
    with fake_mode():
        assert shown(*program()) == expected


def _in_place(change: Callable[[Tensor], Any]) -> Callable[[], list[Tensor]]:
    def program() -> list[Tensor]:
        base = torch.zeros(2, 1, 3)
        view, alias = base[0], base.detach()
        change(base)
        return [base, view, alias]

    return program


IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "resize_smaller": lambda t: t.resize_(2),
    "resize_larger": lambda t: t.resize_(4, 5),
    "resize_format": lambda t: t.resize_(1, 2, 2, 2, memory_format=torch.channels_last),
    "resize_as_": lambda t: t.resize_as_(torch.ones(7)),
    "transpose_": lambda t: t.transpose_(0, 2),
    "swapdims_": lambda t: t.swapdims_(0, 1),
    "t_": lambda t: t.squeeze_(1).t_(),
    "squeeze_": lambda t: t.squeeze_(),
    "squeeze_last_dim": lambda t: t.transpose_(1, 2).squeeze_(2),
    "unsqueeze_": lambda t: t.unsqueeze_(-1),
    "as_strided_": lambda t: t.as_strided_((2, 2), (1, 2), 1),
    "set_nothing": lambda t: t.set_(),
    "set_tensor": lambda t: t.set_(torch.ones(4)),
    "set_storage": lambda t: t.set_(torch.ones(4).untyped_storage()),
    "set_own_storage": lambda t: t.set_(t.untyped_storage(), 2, (2, 2), (1, 2)),
    "set_place": lambda t: t.set_(torch.ones(4), 1, (3,), (1,)),
    "data": lambda t: setattr(t, "data", torch.ones(4, 4).t()),
    "data_dtype": lambda t: setattr(t, "data", torch.ones(2, dtype=torch.float64)),
    "data_view": lambda t: setattr(t, "data", t.data[1:]),
    "detach_": lambda t: t.detach_(),
    "storage_resize": lambda t: t.untyped_storage().resize_(0),
    "storage_resize_and_back": lambda t: t.untyped_storage().resize_(0).resize_(24),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_changes_in_place(name: str) -> None:
    assert_same(_in_place(IN_PLACE[name]))


@pytest.mark.parametrize("name", IN_PLACE)
def test_changes_in_place_after_the_mode(name: str) -> None:
    def change(base: Tensor, view: Tensor, alias: Tensor, other: Tensor) -> list[Tensor]:
        IN_PLACE[name](base)
        return [base, view, alias]

    def build() -> list[Tensor]:
        base = torch.zeros(2, 1, 3)
        return [base, base[0], base.detach(), torch.ones(4)]

    expected = [describe_tensor(t) for t in change(*build())]
    fakes = change(*fake_mode()(build)())
    assert [describe_tensor(t) for t in fakes] == expected


def _set_from_fake(base: Tensor) -> list[Tensor]:
    place = base.new_empty(0).set_(base, 1, (2, 2), (1, 2))
    whole = base.new_empty(0).set_(base)
    storage = base.new_empty(0).set_(base.untyped_storage())
    return [base, place, whole, storage, place[0]]


def test_set_shares_memory_with_its_source() -> None:
    assert_same(lambda: _set_from_fake(torch.zeros(2, 3)))
    fake = fake_like(torch.zeros(2, 3))
    assert shown(*_set_from_fake(fake)) == shown(*_set_from_fake(torch.zeros(2, 3)))


def test_data_to_another_device() -> None:
    with fake_mode(fake_cuda=True):
        weight = nn.Parameter(torch.ones(2, 3))
        weight.data = torch.zeros(4, dtype=torch.float16, device="cuda")
        assert (weight.device, weight.dtype, weight.shape) == (
            torch.device("cuda", 0), torch.float16, (4,)
        )  # fmt: skip
        assert weight.tolist() == [0.0] * 4
        assert isinstance(weight, nn.Parameter)
        (weight.sum() * 2).backward()
        assert weight.grad is not None
        assert weight.grad.device == weight.device


def test_data_shares_memory_and_not_versions() -> None:
    def program() -> list[Tensor]:
        weight = torch.ones(2, 2, requires_grad=True)
        data, detached = weight.data, weight.detach()
        data.add_(1)
        detached.mul_(2)
        return [weight, data, detached]

    assert_same(program)
    with fake_mode():
        assert program()[0].tolist() == [[4.0, 4.0]] * 2


def test_versions_of_views_and_lists() -> None:
    def program() -> list[Tensor]:
        base = torch.zeros(4, 4)
        rows = base.unbind()
        rows[0].add_(1)
        torch._foreach_add_([rows[1], rows[2]], 1)
        base[:, 1].zero_()
        copies = [torch.ones(2), torch.ones(3)]
        torch._foreach_copy_(copies, [torch.zeros(2), torch.zeros(3)])
        return [base, *rows, *copies]

    assert_same(program)


def test_a_write_by_foreach_is_seen_by_autograd() -> None:
    def program() -> None:
        x = torch.ones(2, requires_grad=True) * 1
        y = x * x
        with torch.no_grad():
            torch._foreach_add_([x], 1)
        y.sum().backward()

    for run in (program, fake_mode()(program)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run()


FORMATS: dict[str, Callable[[], list[Tensor]]] = {
    "channels_last": lambda: [torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)],
    "channels_last_3d": lambda: [
        torch.zeros(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d)
    ],
    "empty": lambda: [torch.empty(2, 3, 4, 5, memory_format=torch.channels_last)],
    "kept_by_ops": lambda: [torch.empty(2, 3, 4, 5, memory_format=torch.channels_last).relu() + 1],
    "kept_by_likes": lambda: [
        torch.zeros_like(torch.empty(2, 3, 4, 5, memory_format=torch.channels_last))
    ],
    "permuted": lambda: [torch.empty(2, 3, 4).permute(2, 0, 1).clone()],
    "permuted_contiguous": lambda: [torch.empty(2, 3, 4).permute(2, 0, 1).contiguous()],
    "expanded": lambda: [torch.empty(3, 1).expand(3, 4).clone(), torch.empty(1).expand(3) * 2],
    "conv": lambda: [
        nn.Conv2d(3, 2, 1).to(memory_format=torch.channels_last)(torch.empty(1, 3, 4, 4))
    ],
    "contiguous_is_itself": lambda: (lambda t: [t, t.contiguous()])(torch.empty(2, 3)),
    "offset": lambda: [torch.arange(12).view(3, 4)[1:, 2:], torch.arange(12)[5:].clone()],
    "empty_permuted": lambda: [torch.empty_permuted((2, 3, 4), (2, 0, 1))],
    "reshape": lambda: (lambda t: [t, t.reshape(6), t.t().reshape(6)])(torch.empty(2, 3)),
    "view_dtype": lambda: (lambda t: [t, t.view(torch.int16), t[:, 2:].view(torch.uint8)])(
        torch.zeros(2, 4)
    ),
    "complex": lambda: (lambda t: [t, t.real, t.imag, t.conj().imag, torch.view_as_real(t)])(
        torch.ones(3, dtype=torch.complex64)
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_layouts(name: str) -> None:
    assert_same(FORMATS[name])


class Tied(nn.Module):
    """An embedding and a head with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_found() -> None:
    accelerate = pytest.importorskip("accelerate.utils.modeling")
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    model = fake_mode()(Tied)()
    expected = accelerate.find_tied_parameters(Tied())
    assert accelerate.find_tied_parameters(model) == expected == [["embed.weight", "head.weight"]]
    ids = [pytorch_utils.id_tensor_storage(p) for p in model.state_dict().values()]
    assert ids[0] == ids[1]


def test_untied_weights_are_not_found_tied() -> None:
    modeling = pytest.importorskip("accelerate.utils.modeling")
    model = fake_mode()(lambda: nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))))()
    assert modeling.find_tied_parameters(model) == []
    keys = {p.untyped_storage()._cdata for p in model.parameters()}
    assert len(keys) == 8
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    assert len({pytorch_utils.id_tensor_storage(p) for p in model.parameters()}) == 8


def test_ties_survive_copies() -> None:
    for model in (fake_mode()(Tied)(), fake_like(Tied())):
        twin = copy.deepcopy(model)
        assert twin.head.weight is twin.embed.weight
        assert (
            twin.head.weight.untyped_storage()._cdata != model.head.weight.untyped_storage()._cdata
        )


def test_swap_tensors() -> None:
    with fake_mode():
        small, large = torch.ones(2), nn.Parameter(torch.zeros(3, 4, dtype=torch.float16))
    torch.utils.swap_tensors(small, large)
    assert (small.shape, small.dtype, isinstance(small, nn.Parameter)) == (
        (3, 4),
        torch.float16,
        True,
    )
    assert (large.shape, large.dtype, isinstance(large, nn.Parameter)) == (
        (2,),
        torch.float32,
        False,
    )
    assert large.tolist() == [1.0, 1.0]
    assert small.requires_grad
    assert not large.requires_grad


def test_swap_with_a_real_tensor() -> None:
    fake, real = fake_like(torch.zeros(5)), torch.arange(3.0)
    torch.utils.swap_tensors(fake, real)
    assert not is_fake(fake)
    assert fake.tolist() == [0.0, 1.0, 2.0]
    assert is_fake(real)
    assert real.shape == (5,)


def test_storages() -> None:
    with fake_mode(fake_cuda=True):
        fake = torch.zeros(2, 3, device="cuda", dtype=torch.float16)
        storage = fake[1].untyped_storage()
        assert (storage.nbytes(), storage.size(), len(storage)) == (12, 12, 12)
        assert storage.device == torch.device("cuda", 0)
        assert storage._cdata == fake.untyped_storage()._cdata
        storage.resize_(0)
        assert (fake.untyped_storage().nbytes(), fake.shape) == (0, (2, 3))
        storage.resize_(12)
        fake.fill_(1)
        assert fake.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "copysign", "add"])
def test_broadcast_against_channels_last(name: str) -> None:
    image = torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last)
    small = torch.zeros(2, 2).t()
    function = getattr(torch, name)
    wanted = function(small, image).stride()
    assert function(fake_like(small), fake_like(image)).stride() == wanted
