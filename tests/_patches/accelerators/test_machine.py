"""``torch.cuda`` and ``torch.accelerator`` describe the machine of the mode; streams and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests._patches.conftest import CUDA, no_gpu
from torchfake import (
    deferred_init,
    deferred_mode,
    errors,
    fake_mode,
    materialize_module,
    profiles,
)
from torchfake._torch import dispatcher


def test_current_device() -> None:
    """``cuda`` means the current device; every way to change it does, and each mode has its own."""
    with fake_mode(fake_cuda=3):
        assert torch.cuda.current_device() == 0
        torch.cuda.set_device(1)
        assert torch.ones(1, device="cuda").device == torch.device("cuda:1")
        with torch.cuda.device(2):
            assert torch.cuda.current_device() == 2
            assert torch.ones(1).cuda().device == torch.device("cuda:2")
            with fake_mode(fake_cuda=2):
                assert torch.cuda.current_device() == 0
        assert torch.cuda.current_device() == 1
        with torch.cuda.device_of(torch.ones(1, device="cuda:2")):
            assert torch.cuda.current_device() == 2
        with torch.cuda.device("cuda:0"):
            assert nn.Linear(1, 1, device="cuda").weight.device == CUDA
        torch.cuda.set_device("cuda:2")
        assert torch.cuda.current_device() == 2
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda.set_device(3)
    with fake_mode(fake_cuda=3):
        assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("name", profiles())
def test_profiles(name: str) -> None:
    """``torch.cuda`` describes the named device, and its functions agree."""
    profile = profiles()[name]
    with fake_mode(fake_cuda=name):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        properties = torch.cuda.get_device_properties(0)
        assert properties.name == torch.cuda.get_device_name() == profile.name
        assert (properties.major, properties.minor) == torch.cuda.get_device_capability("cuda")
        assert torch.cuda.get_device_capability() == (profile.major, profile.minor)
        assert properties.multi_processor_count == profile.multi_processor_count
        free, total = torch.cuda.mem_get_info()
        assert 0 < free <= total == properties.total_memory == profile.total_memory
        assert torch.cuda.is_bf16_supported(including_emulation=False) is (profile.major >= 8)
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated("cuda:0") == 0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def test_accelerator_is_the_same_machine() -> None:
    """``torch.accelerator`` agrees with ``torch.cuda``, and so does a stream."""
    with fake_mode(fake_cuda=3):
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.accelerator.is_available()
        assert torch.accelerator.device_count() == 3
        torch.accelerator.set_device_index(2)
        assert torch.accelerator.current_device_index() == torch.cuda.current_device() == 2
        torch.accelerator.synchronize()
        torch.cuda.current_stream().synchronize()
        assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_on_fake_cuda(use_reentrant: bool) -> None:
    """Checkpointing reads the device's generator state and sets it again."""
    with fake_mode(fake_cuda=2):
        module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 3)).cuda(1)
        x = torch.randn(2, 3, device="cuda:1", requires_grad=True)
        run = torch.utils.checkpoint.checkpoint
        run(module, x, use_reentrant=use_reentrant).sum().backward()
    assert x.grad.device == module[0].weight.grad.device == torch.device("cuda:1")


def test_queries_about_other_devices() -> None:
    """A device out of range is refused; names of devices are understood."""
    with fake_mode(fake_cuda=2):
        for device in (1, "cuda:1", torch.device("cuda:1"), "cuda", None):
            assert torch.cuda.get_device_capability(device) == (8, 0)
        for query in (torch.cuda.get_device_properties, torch.cuda.get_device_name):
            with pytest.raises(RuntimeError, match="invalid device ordinal"):
                query(2)


def test_seeds_and_generators_of_fake_cuda() -> None:
    """Programs seed CUDA before they do anything else."""
    with fake_mode(fake_cuda=2):
        torch.cuda.manual_seed(1)
        torch.cuda.manual_seed_all(1)
        state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        with torch.random.fork_rng(devices=[0, 1]):
            torch.rand(2, device="cuda")


@pytest.mark.parametrize("wrong", ["no-such-gpu", -1, 10_000, ""])
def test_invalid_machines_are_refused(wrong: Any) -> None:
    """They are refused when the mode is made."""
    with pytest.raises(errors.DeviceError):
        fake_mode(fake_cuda=wrong)


def error_of(program: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        program()
    return type(caught.value), str(caught.value)


@no_gpu
@pytest.mark.parametrize(
    "program",
    [
        lambda: torch.ones(3, device="cuda"),
        lambda: torch.ones(3).cuda(),
        lambda: torch.ones(3).to("cuda"),
        lambda: nn.Linear(2, 2, device="cuda"),
        lambda: nn.Linear(2, 2).cuda(),
        lambda: torch.tensor([1], device="cuda:0"),
        lambda: torch.cuda.current_device(),
        lambda: torch.cuda.get_device_properties(0),
        lambda: torch.zeros_like(torch.ones(2), device="cuda"),
    ],
    ids=["factory", "cuda", "to", "linear", "module", "tensor", "current", "properties", "like"],
)
def test_without_fake_cuda_errors_are_eagers(program: Callable[[], Any]) -> None:
    """Without fake CUDA the error is eager's, in the mode and after any mode."""
    before = error_of(program)
    with fake_mode():
        assert error_of(program) == before
    with fake_mode(fake_cuda=2):
        program()
        with fake_mode():
            assert error_of(program) == before
        program()
    assert error_of(program) == before
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0


def test_streams() -> None:
    with fake_mode(fake_cuda=2):
        stream = torch.cuda.Stream(priority=-1)
        assert isinstance(stream, torch.cuda.Stream)
        assert stream != torch.cuda.current_stream()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert torch.cuda.Stream(device="cuda:1").device == torch.device("cuda:1")
        with torch.cuda.stream(stream):
            event = stream.record_event()
        event.wait(torch.cuda.current_stream())
        stream.wait_event(event)
        stream.wait_stream(torch.cuda.current_stream())
        assert event.query()
        assert stream.query()
        assert isinstance(torch.cuda.Event(enable_timing=True), torch.cuda.Event)
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda.Stream(device=2)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError):
            torch.cuda.Stream()


@no_gpu
def test_a_real_tensor_that_cuda_refuses_does_not_initialize_it() -> None:
    """C++ remembers that the lazy initialization has succeeded, for the process."""

    def refusal() -> tuple[type[BaseException], str]:
        with pytest.raises((RuntimeError, AssertionError)) as info:
            torch.empty(2, device="cuda")
        return info.type, str(info.value)

    expected = refusal()
    layer = deferred_init(nn.Linear, 3, 4)
    with deferred_mode(fake_cuda=1), pytest.raises(errors.DeviceError, match="does not have"):
        materialize_module(layer, device="cuda")
    with fake_mode(fake_cuda=1):
        with dispatcher.as_eager():
            assert refusal() == expected
        with torch.device("cuda"):
            assert torch.tensor([1.0]).device == torch.device("cuda", 0)
    assert refusal() == expected
