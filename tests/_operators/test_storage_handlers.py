"""Which fakes say that they are in pinned memory, as tensors do on a machine with a GPU; and which
that they lie alike in one memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchfake import deferred_mode, fake_like, fake_mode


@pytest.fixture(params=[fake_mode, deferred_mode])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param(fake_cuda=True):
        yield


@pytest.mark.usefixtures("mode")
def test_what_is_pinned() -> None:
    plain = torch.ones(2)
    pinned = plain.pin_memory()
    assert not plain.is_pinned()
    assert pinned.is_pinned()
    assert pinned.pin_memory() is pinned
    assert pinned[1:].is_pinned()
    assert pinned.untyped_storage().is_pinned()
    assert torch.empty(2, pin_memory=True).is_pinned()
    for copy in (pinned.clone(), pinned + 1, torch.empty_like(pinned), pinned.cuda().cpu()):
        assert not copy.is_pinned()
    with torch.inference_mode():
        assert pinned.pin_memory() is pinned
        assert plain.pin_memory().is_pinned()
    assert pinned.tolist() == torch.ones(2, pin_memory=True).tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("mode")
def test_only_the_cpus_memory_is_pinned() -> None:
    on_cuda = torch.ones(2, device="cuda")
    assert not on_cuda.is_pinned()
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch.cuda.FloatTensor' only dense CPU"):
        on_cuda.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="cuda", pin_memory=True)


def test_a_loader_pins_its_batches() -> None:
    with fake_mode(fake_cuda=True):
        data = torch.utils.data.TensorDataset(torch.ones(4, 3))
        batches = list(torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True))
        assert all(batch.is_pinned() for (batch,) in batches)


def test_after_the_mode() -> None:
    fake = fake_like(torch.ones(3))
    assert (fake.is_pinned(), fake.pin_memory().is_pinned()) == (False, True)


@pytest.mark.usefixtures("mode")
def test_which_tensors_lie_alike_in_one_memory() -> None:
    x = torch.ones(2)
    alike = x, x.view(2), x.detach(), x.view(torch.int32)
    others = torch.ones(2), x.view(2, 1), x[:1], x.clone(), torch.ones(2, device="cuda")
    assert all(x.is_set_to(other) for other in alike)
    assert not any(x.is_set_to(other) for other in others)


def test_a_real_tensor_has_another_memory() -> None:
    real = torch.ones(2)
    with fake_mode():
        assert not torch.ones(2).is_set_to(real)
        assert real.is_set_to(real.view(2))
