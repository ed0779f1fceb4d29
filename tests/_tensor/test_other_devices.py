"""What tells others the device of a fake: DLPack, legacy types, sharing, pinned copies, files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchfake import fake_mode, is_fake


@pytest.fixture
def x() -> Iterator[torch.Tensor]:
    with fake_mode(fake_cuda=2):
        yield torch.ones(2, 2, device="cuda:1")


def test_dlpack_keeps_the_device_and_the_memory(x: torch.Tensor) -> None:
    for function in (torch.from_dlpack, torch.utils.dlpack.from_dlpack):
        same = function(x)
        assert is_fake(same)
        assert same.device == torch.device("cuda:1")
        assert same.data_ptr() == x.data_ptr()
    kind, index = x.__dlpack_device__()
    assert (int(kind), index) == (2, 1)
    assert torch.from_dlpack(x, device="cpu").device.type == "cpu"
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(x.requires_grad_())


def test_no_other_library_gets_memory_of_a_device_that_is_not_there(x: torch.Tensor) -> None:
    with pytest.raises(BufferError, match="no memory on cuda:1"):
        x.__dlpack__()


def test_legacy_types_change_the_kind_of_device_alone(x: torch.Tensor) -> None:
    half = x.type("torch.cuda.HalfTensor")
    assert (half.device, half.dtype) == (torch.device("cuda:1"), torch.float16)
    assert x.type("torch.FloatTensor").device.type == "cpu"
    assert x.cpu().type("torch.cuda.FloatTensor").device == torch.device("cuda:0")


@pytest.mark.parametrize("given", ["cpu", torch.device("cpu"), "meta"])
def test_cuda_takes_cuda_devices_alone(x: torch.Tensor, given: Any) -> None:
    for tensor in (x, x.cpu()):
        with pytest.raises(RuntimeError, match="Invalid device, must be cuda device"):
            tensor.cuda(given)
    with pytest.raises(RuntimeError, match="Invalid device, must be cuda device"):
        torch.nn.Linear(1, 1).cuda(given)
    assert x.cuda(0).device == x.cuda("cuda").device == torch.device("cuda:0")


def test_memory_on_cuda_is_shared(x: torch.Tensor) -> None:
    assert x.is_shared()
    assert x.untyped_storage().is_shared()
    assert not x.cpu().is_shared()


def test_copies_that_need_not_wait_are_pinned(x: torch.Tensor) -> None:
    assert x.to("cpu", non_blocking=True).is_pinned()
    assert x.to("cpu", torch.float16, True).is_pinned()
    assert not x.to("cpu").is_pinned()
    assert not x.cpu().to("cpu", non_blocking=True).is_pinned()


def test_legacy_new_refuses_other_dtypes_and_devices() -> None:
    real, number = torch.ones(2), torch.ones(2, dtype=torch.int64)
    with fake_mode():
        tensors = real, torch.ones(2)
        assert tensors[1].new(torch.ones(2)).shape == (2,)
        for tensor in tensors:
            with pytest.raises(TypeError, match="expected "):
                tensor.new(number)
            for argument in ([1.0], 2, torch.Size([2])):
                with pytest.raises(RuntimeError, match="legacy constructor expects device type"):
                    tensor.new(argument, device="meta")


def test_an_event_is_on_the_device_that_records_it() -> None:
    with fake_mode(fake_cuda=2):
        event, other = torch.cuda.Event(), torch.cuda.Event()
        assert event.device is None
        event.record()
        assert event.device == torch.device("cuda:0")
        torch.cuda.Stream(1).record_event(other)
        assert other.device == torch.device("cuda:1")


def test_a_file_of_fakes_is_loaded_onto_meta(x: torch.Tensor) -> None:
    for tensor in (x, torch.ones(3).t(), torch.nn.Parameter(torch.ones(2))):
        file = io.BytesIO()
        torch.save({"tensor": tensor}, file)
        file.seek(0)
        loaded = torch.load(file, map_location="meta")["tensor"]
        assert loaded.is_meta
        assert not is_fake(loaded)
        assert (loaded.shape, loaded.stride()) == (tensor.shape, tensor.stride())
        assert type(loaded) is (torch.nn.Parameter if tensor.requires_grad else torch.Tensor)
