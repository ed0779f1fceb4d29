"""Each device that a fake can report has a carrier device, from which it can be decoded."""

from __future__ import annotations

import pytest
import torch

from torchfake import errors, fake_like, fake_mode
from torchfake._core import devices

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize(
    "device", [CPU, *(torch.device("cuda", i) for i in (0, 1, 7, devices.MAX_DEVICES - 1))]
)
def test_a_carrier_is_decoded_to_its_device(device: torch.device) -> None:
    carrier = devices.carrier(device)
    assert carrier.type == "meta"
    assert carrier.index is not None
    assert devices.decode(carrier) == device


def test_carriers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """All CUDA devices of a mode have carriers that differ, and so have those of other types."""
    given = {devices.carrier(CPU): CPU}
    monkeypatch.setattr(devices, "_devices_of_carriers", given)
    cuda = [torch.device("cuda", i) for i in range(devices.MAX_DEVICES)]
    others = [torch.device(kind, 1) for kind in ("xpu", "hpu", "mtia", "xla", "mps")]
    carriers = [devices.carrier.__wrapped__(device) for device in (*cuda, *others)]
    assert len({*carriers, devices.carrier(CPU)}) == 1 + len(cuda) + len(others)
    assert [devices.decode(carrier) for carrier in carriers] == [*cuda, *others]
    assert carriers[3] == torch.device("meta", 11)
    devices.carrier.__wrapped__(torch.device("xpu", 2))
    with pytest.raises(errors.DeviceError, match="on 127 devices already"):
        devices.carrier.__wrapped__(torch.device("xpu", 3))


def test_other_devices_are_not_decoded() -> None:
    for device in (META, CPU, torch.device("cuda", 1)):
        assert devices.decode(device) == device


def test_a_wrapper_is_on_the_carrier() -> None:
    fake = fake_like(torch.ones(2), device="cuda:3")
    assert fake.device == torch.device("cuda", 3)
    assert torch.Tensor.device.__get__(fake) == devices.carrier(torch.device("cuda", 3))


@pytest.mark.parametrize("device", ["vulkan", torch.device("ipu", 1), "cuda:120"])
def test_devices_that_fakes_cannot_have(device: str | torch.device) -> None:
    with pytest.raises(errors.DeviceError, match="fakes are on cpu or cuda"):
        devices.carrier(torch.device(device))


def test_resolve_in_a_mode_with_fake_cuda() -> None:
    with fake_mode(fake_cuda=4):
        assert devices.resolve("cpu") == CPU
        assert devices.resolve("meta") == META
        assert devices.resolve("cuda") == torch.device("cuda", 0)
        assert devices.resolve(2) == devices.resolve("cuda:2") == torch.device("cuda", 2)
        torch.cuda.set_device(3)
        assert devices.resolve("cuda") == torch.device("cuda", 3)
        assert devices.resolve(devices.carrier(torch.device("cuda", 1))).index == 1
        with pytest.raises(RuntimeError, match=r"invalid device ordinal: cuda:4 .* has 4 CUDA"):
            devices.resolve("cuda:4")


def test_resolve_outside_of_all_modes() -> None:
    """A fake that outlives its mode may be moved to any device."""
    assert devices.resolve("cuda:100") == torch.device("cuda", 100)
    with pytest.raises(errors.DeviceError):
        devices.resolve("vulkan")


def test_encode() -> None:
    assert devices.encode("cuda:2") == devices.carrier(torch.device("cuda", 2))
    assert devices.encode("meta") == META
