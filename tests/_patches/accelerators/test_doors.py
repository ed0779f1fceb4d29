"""Every door to a fake device, of every type of accelerator: names, numbers, methods, contexts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.conftest import all_fake
from torchfake import deferred_mode, errors, fake_mode, is_fake, materialize_module, meta_init
from torchfake._core import devices
from torchfake._torch import backends

BACKEND = "privateuseone"  # torch's own name: to rename it is for the whole process
TYPES = [*devices.KINDS, BACKEND]

DOORS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "ones": lambda d, real: torch.ones(3, device=d),
    "tensor": lambda d, real: torch.tensor([1.0], device=d),
    "as_tensor": lambda d, real: torch.as_tensor([1.0], device=d),
    "as_tensor_of_real": lambda d, real: torch.as_tensor(real, device=d),
    "asarray": lambda d, real: torch.asarray([1.0], device=d),
    "normal": lambda d, real: torch.normal(0.0, 1.0, (2,), device=d),
    "fft": lambda d, real: torch.fft.fftfreq(4, device=d),
    "window": lambda d, real: torch.signal.windows.hann(4, device=d),
    "like": lambda d, real: torch.ones_like(torch.ones(2), device=d),
    "like_real": lambda d, real: torch.rand_like(real, device=d),
    "new": lambda d, real: torch.ones(2).new_full((3,), 2.0, device=d),
    "new_of_real": lambda d, real: real.new_zeros(3, device=d),
    "new_tensor_of_real": lambda d, real: real.new_tensor([3.0], device=d),
    "to": lambda d, real: torch.ones(2).to(d),
    "to_of_real": lambda d, real: real.to(d),
    "to_of_real_by_name": lambda d, real: real.to(dtype=torch.float16, device=d),
    "linear": lambda d, real: nn.Linear(2, 2, device=d).weight,
    "attention": lambda d, real: nn.MultiheadAttention(8, 2, device=d).in_proj_weight,
    "module_to": lambda d, real: nn.Linear(2, 2).to(d).weight,
    "module_to_by_name": lambda d, real: nn.Linear(2, 2).to(device=d).weight,
    "to_empty": lambda d, real: nn.Linear(2, 2, device="meta").to_empty(device=d).weight,
    "generator": lambda d, real: torch.randn(3, generator=torch.Generator(d), device=d),
    "context": lambda d, real: in_context(d, lambda: torch.as_tensor([1.0])),
    "context_of_module": lambda d, real: in_context(d, lambda: nn.Linear(2, 2).weight),
}


def in_context(device: Any, program: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.device(device):
        return program()


@pytest.mark.parametrize("device_type", TYPES)
def test_every_door(device_type: str) -> None:
    """Names, numbers and devices, with an index and without, for fakes and for real tensors."""
    real, expected = torch.ones(3), torch.device(device_type, 0)
    with fake_mode(fake_device=device_type):
        names = [device_type, f"{device_type}:0", 0, torch.device(device_type), torch.device(0)]
        for name, door in DOORS.items():
            made = [door(device, real) for device in names]
            assert {t.device for t in made} == {expected}, name
            assert all_fake(made), name


@pytest.mark.parametrize("device_type", TYPES)
@pytest.mark.parametrize("autocast", [False, True])
def test_a_step_of_training(device_type: str, autocast: bool) -> None:
    expected = torch.device(device_type, 0)
    with fake_mode(fake_device=device_type):
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
        net.to(device_type)
        optimizer = torch.optim.AdamW(net.parameters())
        scaler = torch.amp.GradScaler(device_type)
        x = torch.randn(2, 3, 8, 8, device=device_type)
        with torch.autocast(device_type, torch.bfloat16, enabled=autocast):
            y = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
            loss = F.cross_entropy(y, torch.tensor([0, 1], device=device_type))
        scaler.scale(loss).backward()
        optimizer.step()
    assert y.dtype is (torch.bfloat16 if autocast else torch.float32)
    assert loss.dtype is torch.float32
    assert {p.grad.device for p in net.parameters()} == {expected}
    with fake_mode():
        x = torch.ones(2, 3, 8, 8)
    net(x.to(expected)).sum().backward()  # after the mode, too
    assert net[0].weight.grad.device == expected


@pytest.mark.parametrize("device_type", TYPES)
def test_torch_describes_the_machine(device_type: str) -> None:
    num_devices = min(2, devices.kind_of(device_type).max_devices)
    with fake_mode(fake_device=device_type, num_devices=num_devices):
        module = torch.get_device_module()
        assert module is getattr(torch, device_type) is torch.get_device_module(device_type)
        assert torch.accelerator.current_accelerator() == torch.device(device_type)
        assert torch.accelerator.device_count() == module.device_count() == num_devices
        assert module.is_available()
        torch.accelerator.set_device_index(num_devices - 1)
        last = torch.device(device_type, num_devices - 1)
        assert torch.ones(1, device=device_type).device == last
        assert torch.accelerator.current_stream().device == last
        with torch.Stream(device=device_type) as stream:
            assert torch.accelerator.current_stream() == stream
            assert isinstance(stream, torch.Stream)
        torch.accelerator.synchronize()
        assert torch.accelerator.memory_allocated() == 0
        with torch.random.fork_rng(devices=[0], device_type=device_type):
            torch.rand(2, device=device_type)
    assert torch.accelerator.device_count() == 0 or torch.accelerator.is_available()


@pytest.mark.parametrize("device_type", TYPES)
def test_deferred_modules_know_their_device(device_type: str) -> None:
    """On a machine without it the error says so, and values can be made elsewhere."""
    if backends.own_accelerator_type() == device_type and torch.accelerator.is_available():
        pytest.skip("this machine has it")
    for mode in (deferred_mode(fake_device=device_type), meta_init()):
        with mode:
            layer = nn.Linear(2, 2, device=device_type)
        with pytest.raises(errors.MaterializeError, match=f"recorded on {device_type}:0, which"):
            materialize_module(layer)
        assert materialize_module(layer, device="cpu").weight.abs().sum() > 0


def test_attributes() -> None:
    with fake_mode(fake_device="xpu", num_devices=2):
        fake = torch.ones(1).xpu(1)
        assert (fake.is_xpu, fake.is_cuda, fake.is_cpu, fake.get_device()) == (
            True,
            False,
            False,
            1,
        )
        assert fake.type() == "torch.xpu.FloatTensor"
        assert fake.untyped_storage().device == torch.device("xpu:1")
        assert torch.ones(1).type("torch.xpu.HalfTensor").device == torch.device("xpu:0")
    with fake_mode(fake_cuda=2):
        assert torch.cuda.FloatTensor(2, 3).device == torch.device("cuda:0")
        assert isinstance(torch.cuda.HalfTensor([1.0]), torch.cuda.HalfTensor)
        assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
        assert torch.ones(1).type(torch.cuda.FloatTensor).is_cuda


def test_no_float64_on_mps() -> None:
    with fake_mode(fake_device="mps"):
        for program in (
            lambda: torch.ones(1, dtype=torch.float64, device="mps"),
            lambda: torch.ones(1, device="mps").double(),
            lambda: torch.ones(1, dtype=torch.float64).to("mps"),
        ):
            with pytest.raises(TypeError, match="MPS framework doesn't support float64"):
                program()


def test_what_is_known_of_cuda_alone_says_so() -> None:
    with fake_mode(fake_device="xpu"):
        for question in (torch.xpu.mem_get_info, torch.xpu.get_device_capability):
            with pytest.raises(errors.UnsupportedOpError, match="there are profiles of CUDA"):
                question()


def test_wrong_machines_are_refused() -> None:
    for wrong in ({"fake_device": "vulkan"}, {"fake_device": "mps", "num_devices": 2}):
        with pytest.raises(errors.DeviceError):
            fake_mode(**wrong)
    both = {"fake_cuda": 1, "fake_device": "xpu"}
    for wrong in ({"num_devices": 2}, {"fake_device": 1}, both):
        with pytest.raises(TypeError):
            fake_mode(**wrong)


def test_devices_that_neither_the_mode_nor_the_machine_has() -> None:
    """The error is of eager's type."""
    kinds = [kind for kind in TYPES if kind not in ("cuda", BACKEND)]
    kinds = [kind for kind in kinds if not backends.has_device_type(kind)]
    for kind in kinds:
        with pytest.raises(Exception) as eager:  # noqa: PT011
            torch.ones(1, device=kind)
        with fake_mode(), pytest.raises(eager.type):
            torch.ones(1, device=kind)
        assert not is_fake(torch.ones(1))


@pytest.mark.parametrize("device", ["cuda", "cuda:5", 0, "xpu", torch.device("mps")])
def test_meta_init_overrides_devices_that_are_not_there(device: Any) -> None:
    with meta_init():
        made = [nn.Linear(3, 4, device=device).weight, nn.Linear(3, 4).to(device).weight]
        made += [torch.ones(1, device=device), torch.ones(1).to(device), torch.empty(2).cuda()]
        made.append(torch.randn(2, device=device, generator=torch.Generator(device)))
        assert not torch.cuda.is_available() or torch.cuda.device_count()
    assert {t.device for t in made} == {torch.device("meta")}
