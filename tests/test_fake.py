"""``fake_mode``: what it refuses."""

import pytest
import torch

from torchfake import deferred_mode, fake_mode


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
