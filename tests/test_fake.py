"""``fake_mode``: what it refuses; ``meta_like`` of a module."""

import pytest
import torch
from torch import nn

import torchfake
from torchfake import deferred_mode, errors, fake_mode


def test_generator_functions_are_refused():
    def numbers():
        yield torch.ones(1)

    with pytest.raises(TypeError, match="generator function numbers"):
        fake_mode()(numbers)


def test_async_functions_are_refused():
    async def coroutine():
        return torch.ones(1)

    async def numbers():
        yield torch.ones(1)

    for function in (coroutine, numbers):
        for mode in (fake_mode(), deferred_mode()):
            with pytest.raises(TypeError, match=rf"async function {function.__name__}.*_mode"):
                mode(function)


@pytest.mark.parametrize("value", [1.5, None, [1]])
def test_fake_cuda_of_another_type_is_refused(value):
    with pytest.raises(TypeError, match="a number of devices"):
        fake_mode(fake_cuda=value)


def test_a_module_like_one_of_fakes_on_meta():
    def build():
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        module[2].weight = module[0].weight
        module[0].bias.requires_grad_(False)
        return module

    with fake_mode():
        fake = build()
    deferred = torchfake.deferred_init(build)
    with torch.device("meta"):
        expected = build()
    for given in (fake, deferred):
        found = torchfake.meta_like(given)
        assert type(found) is nn.Sequential
        assert torchfake.is_fake(given)
        assert found[2].weight is found[0].weight
        assert list(found.state_dict()) == list(expected.state_dict())
        for (name, ours), (_, theirs) in zip(
            [*found.named_parameters(), *found.named_buffers()],
            [*expected.named_parameters(), *expected.named_buffers()],
            strict=True,
        ):
            assert type(ours) is type(theirs), name
            assert ours.is_meta
            assert (ours.shape, ours.stride(), ours.dtype) == (
                theirs.shape, theirs.stride(), theirs.dtype
            )  # fmt: skip
            assert ours.requires_grad == theirs.requires_grad
        assert found(torch.empty(2, 3, device="meta")).is_meta
    with pytest.raises(errors.NotFakeError, match="one in Linear is a real tensor on cpu"):
        torchfake.meta_like(nn.Linear(2, 3))
