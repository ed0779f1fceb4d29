"""Fakes changed in place, viewed or strided have eager's metadata; equal records are one object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import describe_tensor
from torchfake import fake_like, fake_mode
from torchfake._core import metadata
from torchfake._core.metadata import (
    DEFERRED,
    DEFERRED_AS_META,
    PLAIN,
    Metadata,
    bytes_spanned,
    contiguous_stride,
    intern,
    is_dense,
    metadata_of,
    with_mark,
)


def described(*tensors: Tensor) -> list[Any]:
    """The metadata of each tensor, whether it is a view, and which tensors share its memory."""
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
    """The tensors of `program` have the same metadata in eager mode and in a fake mode."""
    expected = described(*program())
    with fake_mode():
        assert described(*program()) == expected


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
    "set_strided": lambda t: t.set_(torch.ones(4), 1, (3,), (1,)),
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
    strided = base.new_empty(0).set_(base, 1, (2, 2), (1, 2))
    whole = base.new_empty(0).set_(base)
    storage = base.new_empty(0).set_(base.untyped_storage())
    return [base, strided, whole, storage, strided[0]]


def test_set_shares_memory_with_its_source() -> None:
    assert_same(lambda: _set_from_fake(torch.zeros(2, 3)))
    fake = fake_like(torch.zeros(2, 3))
    assert described(*_set_from_fake(fake)) == described(*_set_from_fake(torch.zeros(2, 3)))


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


def test_autograd_detects_writes_by_foreach() -> None:
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


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "copysign", "add"])
def test_broadcast_against_channels_last(name: str) -> None:
    image = torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last)
    small = torch.zeros(2, 2).t()
    function = getattr(torch, name)
    expected = function(small, image).stride()
    assert function(fake_like(small), fake_like(image)).stride() == expected


def test_signs_of_another_dtype_lie_as_eagers() -> None:
    numbers = torch.zeros(18, dtype=torch.float64).as_strided((1, 2, 1, 3, 1), (6, 3, 3, 1, 1))
    signs = torch.zeros(99, dtype=torch.int64).as_strided((2, 1, 1, 1, 2), (3, 12, 0, 6, 3))
    expected = torch.copysign(numbers, signs).stride()
    assert torch.copysign(fake_like(numbers), fake_like(signs)).stride() == expected


CPU = torch.device("cpu")


def record_of(*size: int, mark: int = PLAIN, device: torch.device = CPU) -> Metadata:
    return intern(size, contiguous_stride(size), 0, torch.float32, device, mark=mark)


def test_equal_records_are_one_object() -> None:
    assert record_of(2, 3) is record_of(2, 3)
    assert record_of(2, 3) is not record_of(3, 2)
    assert metadata_of(torch.ones(2, 3), CPU) is record_of(2, 3)
    assert metadata_of(torch.empty(2, 3, device="meta"), CPU) is record_of(2, 3)


def test_records_made_after_the_table_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the full table was cleared, equal records are new objects; old records stay valid."""
    before = record_of(2, 3)
    monkeypatch.setattr(metadata, "_MAX_INTERNED", 0)
    fresh = record_of(5, 7919)  # of a size that no other test has asked for
    assert record_of(5, 7919) is fresh
    assert record_of(2, 3) is not before
    assert record_of(2, 3).size == before.size


def test_marks() -> None:
    """Records with different marks are different objects; the mark decides the reported device."""
    plain = record_of(2, device=torch.device("cuda", 1))
    deferred, as_meta = with_mark(plain, DEFERRED), with_mark(plain, DEFERRED_AS_META)
    assert len({id(record) for record in (plain, deferred, as_meta)}) == 3
    assert [record.mark for record in (plain, deferred, as_meta)] == [
        PLAIN, DEFERRED, DEFERRED_AS_META
    ]  # fmt: skip
    assert with_mark(deferred, PLAIN) is plain
    assert (
        with_mark(plain, DEFERRED) is deferred is record_of(2, mark=DEFERRED, device=plain.device)
    )
    assert {record.device for record in (plain, deferred, as_meta)} == {plain.device}
    assert deferred.reported_device == plain.device
    assert as_meta.reported_device == torch.device("meta")


@pytest.mark.parametrize("size", [(), (0,), (3,), (2, 3), (2, 0, 3), (1, 2, 1)])
def test_contiguous_strides(size: tuple[int, ...]) -> None:
    tensor = torch.empty(size)
    assert contiguous_stride(size) == tensor.stride()
    record = metadata_of(tensor, CPU)
    assert record.is_contiguous
    assert record.num_bytes == tensor.numel() * 4


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.empty(2, 3).t(), True),
        (torch.empty(2, 3, 4).permute(2, 0, 1), True),
        (torch.empty(2, 3)[:, :2], False),
        (torch.empty(3).expand(2, 3), False),
        (torch.empty(3)[::2], False),
        (torch.empty(3)[1:], True),
    ],
)
def test_dense_records(tensor: Tensor, dense: bool) -> None:
    assert is_dense(metadata_of(tensor, CPU)) == dense


@pytest.mark.parametrize(
    "tensor", [torch.empty(2, 3), torch.empty(4, 5)[1:3, 2:4], torch.empty(2, 0), torch.tensor(1.0)]
)
def test_bytes_spanned(tensor: Tensor) -> None:
    """A storage of ``bytes_spanned`` bytes holds the view, and a smaller storage does not."""
    num_bytes = bytes_spanned(tensor.shape, tensor.stride(), tensor.storage_offset(), 4)
    place = (tensor.storage_offset(), tensor.shape, tensor.stride())
    torch.empty(0).set_(torch.UntypedStorage(num_bytes), *place).sum()
    if num_bytes:
        data = torch.empty(num_bytes // 4 - 1)
        with pytest.raises(RuntimeError, match="out of bounds"):
            torch.as_strided(data, tensor.shape, tensor.stride(), tensor.storage_offset())
