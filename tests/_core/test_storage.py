"""Storages of fakes: aliasing, tied weights, swapped tensors, known values, and addresses."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest
import torch
from torch import nn

from torchfake import deferred_mode, fake_like, fake_mode, is_fake
from torchfake._core.storage import ConstantFill, PinnedMemory, SharedBytes, Storage, storage_of

CPU = torch.device("cpu")


class Tied(nn.Module):
    """An embedding and a head that share one weight."""

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


def test_two_fakes_alias_if_they_have_one_storage() -> None:
    with fake_mode():
        base, other = torch.zeros(4), torch.zeros(4)
    assert base._fake_storage is base[1:].detach()._fake_storage  # type: ignore[attr-defined]
    assert base._fake_storage is not other._fake_storage  # type: ignore[attr-defined]
    storage = base._fake_storage  # type: ignore[attr-defined]
    assert storage_of(storage.meta, CPU) is storage
    assert storage_of(torch.ones(2).untyped_storage(), CPU).num_bytes == 8  # a new one


def known_storage(*values: float) -> Storage:
    value = torch.tensor(values).untyped_storage()
    return Storage(value.nbytes(), CPU, value=value)


def values_of(storage: Storage) -> list[float]:
    tensor = torch.empty(0).set_(storage.known_bytes())
    values: list[float] = tensor.tolist()
    return values


def test_a_copy_shares_known_bytes_until_one_is_written() -> None:
    storage = known_storage(1.0, 2.0)
    copied = storage.copy()
    assert isinstance(storage.value, SharedBytes)
    assert storage.known_bytes().data_ptr() == copied.known_bytes().data_ptr()
    torch.empty(0).set_(copied.writable_bytes()).fill_(5)
    assert values_of(copied) == [5, 5]
    assert values_of(storage) == [1, 2]
    assert copied.writable_bytes() is copied.writable_bytes()


def test_a_constant_has_no_bytes_until_they_are_read() -> None:
    storage = Storage(8, CPU, value=ConstantFill(3, torch.float32, 8))
    assert storage.num_known_bytes() == 8
    assert storage.share() is storage.value
    assert values_of(storage) == [3, 3]
    assert isinstance(storage.value, torch.UntypedStorage)


def test_a_storage_may_be_larger_than_its_known_value() -> None:
    value = torch.ones(2).untyped_storage()
    for known in (value, SharedBytes(value), ConstantFill(1, torch.float32, 8)):
        storage = Storage(16, CPU, value=known)
        assert (storage.num_bytes, storage.num_known_bytes()) == (16, 8)


def test_a_resize_discards_the_value() -> None:
    with fake_mode():
        tensor = torch.zeros(4)
    assert tensor.tolist() == [0] * 4
    tensor.untyped_storage().resize_(64)
    assert tensor._fake_storage.value is None  # type: ignore[attr-defined]


def test_addresses() -> None:
    """Addresses identify storages. Only those of pinned memory are valid."""
    with fake_mode():
        one, other, empty = torch.zeros(4), torch.zeros(4), torch.zeros(0)
    addresses = [t.untyped_storage().data_ptr() for t in (one, other)]
    assert one[1:].untyped_storage().data_ptr() == addresses[0] != addresses[1]
    assert min(addresses) >= 1 << 62
    assert empty.untyped_storage().data_ptr() == 0
    storage = Storage(16, CPU)
    storage.pinned = PinnedMemory()
    assert 0 < storage.untyped.data_ptr() < 1 << 62
    assert storage.untyped.data_ptr() == storage.untyped.data_ptr()
    assert Storage(16, CPU).pinned is None


def test_what_one_kind_of_call_makes_has_one_record_of_size_device_and_operator() -> None:
    with fake_mode():
        made: list[Any] = [torch.empty(4) for _ in range(40)]  # a miss, hits, and hits by a rule
        parts: list[Any] = [torch.empty(3, 5).sort()[1] for _ in range(40)]
    for fakes, num_bytes in ((made[1:], 16), (parts[1:], 120)):
        storages = [fake._fake_storage for fake in fakes]
        assert len({id(each._kind) for each in storages}) == 1
        assert storages[0].num_bytes == num_bytes
        assert storages[0].device == CPU
    assert made[9]._fake_storage.op is torch.ops.aten.empty.memory_format
    with fake_mode():
        others: list[Any] = [torch.empty(length) for length in range(50, 60)]  # by what follows
    assert {fake._fake_storage.op for fake in others} == {torch.ops.aten.empty.memory_format}
    most = 80 if sys.version_info < (3, 12) else 88
    assert sys.getsizeof(storages[0]) <= most  # one slot more would take 16 bytes
    other = made[9]._fake_storage
    other.resize(64)
    assert (other.num_bytes, made[8]._fake_storage.num_bytes) == (64, 16)


def test_pickles_keep_size_device_and_aliases() -> None:
    storage = Storage(16, torch.device("cuda", 1))
    one, same = pickle.loads(pickle.dumps([storage, storage]))
    assert one is same
    assert (one.num_bytes, one.device) == (16, torch.device("cuda", 1))


def test_the_source_location_of_a_storage() -> None:
    with fake_mode():
        tensor = torch.zeros(4)
    location = str(tensor._fake_storage.source_location)  # type: ignore[attr-defined]
    assert "test_storage.py" in location
    assert location.endswith("in test_the_source_location_of_a_storage")
    assert Storage(4, CPU).source_location is None


def test_only_deferred_storages_have_a_deferred_state() -> None:
    with fake_mode():
        plain = torch.zeros(4)
    with deferred_mode():
        deferred = torch.zeros(4)
    assert plain._fake_storage.deferred is None  # type: ignore[attr-defined]
    assert deferred._fake_storage.deferred is not None  # type: ignore[attr-defined]
