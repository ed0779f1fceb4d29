"""A draw refuses a generator of another device type, as in eager mode.

``tests/_tensor/worker_refused_devices`` compares the same draws with torch's own CUDA backend; the
texts here are its answers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests._tensor.worker_refused_devices import draws, outcome
from torchfake import deferred_mode, fake_mode


@pytest.fixture(params=[fake_mode, deferred_mode])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param(fake_cuda=True):
        yield


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("here", "there"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_generators_of_another_device_type(here: str, there: str) -> None:
    refused = f"RuntimeError: Expected a '{here}' device type for generator but found '{there}'"
    for name, program in draws(here, there).items():
        assert outcome(program) == refused, name
    for name, program in {**draws(here, here), **draws(here, there, 0)}.items():
        assert outcome(program).startswith(here), name  # also if nothing is drawn


@pytest.mark.usefixtures("mode")
def test_a_refused_draw_moves_no_generator() -> None:
    generators = torch.Generator("cuda").manual_seed(1), torch.Generator().manual_seed(1)
    before = [g.get_state() for g in generators]
    for device, generator in zip(("cpu", "cuda"), generators, strict=True):
        for draw in (torch.Tensor.normal_, torch.bernoulli):
            with pytest.raises(RuntimeError, match="device type for generator"):
                draw(torch.ones(3, device=device), generator=generator)
    assert all(map(torch.equal, before, [g.get_state() for g in generators]))


@pytest.mark.usefixtures("mode")
def test_the_default_generator_is_the_cpus() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type"):
        torch.randn(3, device="cuda", generator=torch.default_generator)


def test_of_a_real_tensor_and_on_meta() -> None:
    real = torch.ones(3)
    with fake_mode(fake_cuda=True):
        generator = torch.Generator("cuda")
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type"):
            real.normal_(generator=generator)
        assert torch.randn(3, device="meta", generator=generator).is_meta
    assert real.tolist() == [1.0] * 3
