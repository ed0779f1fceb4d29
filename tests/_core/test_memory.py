"""Real storages and tensors have the size, device and metadata of their records."""

from __future__ import annotations

import pytest
import torch

from torchfake._core import memory
from torchfake._core.metadata import metadata_of

CPU = torch.device("cpu")
TENSORS = {
    "contiguous": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "offset": torch.arange(6.0)[2:5],
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 3),
    "conjugate": torch.tensor([1 + 2j, 3j]).conj(),
    "negative": torch.tensor([1 + 2j, 3j]).conj().imag,
    "integers": torch.arange(5, dtype=torch.int16),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_view_by_its_record(name: str) -> None:
    tensor = TENSORS[name]
    view = memory.view_of(tensor.untyped_storage(), metadata_of(tensor, CPU))
    assert view.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert (view.stride(), view.storage_offset()) == (tensor.stride(), tensor.storage_offset())
    assert (view.is_conj(), view.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    assert torch.equal(view, tensor)


@pytest.mark.parametrize("name", TENSORS)
def test_raw_bytes_are_in_order_of_elements(name: str) -> None:
    tensor = TENSORS[name]
    raw = memory.raw_bytes(tensor)
    assert (raw.dtype, raw.numel()) == (torch.uint8, tensor.numel() * tensor.element_size())
    expected = tensor.resolve_conj().resolve_neg().contiguous()
    assert bytes(raw.tolist()) == expected.numpy().tobytes()


def test_a_flat_view() -> None:
    storage = torch.arange(6.0)[2:].untyped_storage()
    flat = memory.flat_view(storage, torch.float32)
    assert flat.tolist() == [0, 1, 2, 3, 4, 5]
    assert memory.flat_view(storage, torch.uint8).shape == (24,)


def test_missing_devices_are_replaced_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    first, third = torch.device("cuda", 0), torch.device("cuda", 2)
    assert memory.is_available(CPU)
    assert memory.is_available(first)
    assert not memory.is_available(third)
    assert memory.replay_device(first) == first
    assert memory.replay_device(third) == CPU
    assert memory.allocate_storage(12, third).device == CPU
    assert memory.allocate_storage(12, CPU).nbytes() == 12


def test_whether_memory_can_be_pinned() -> None:
    assert torch.accelerator.is_available() or not memory.pins_memory()
