"""Results and gradients on images of few elements lie as in eager: one map, one channel, none."""

import itertools

import pytest
import torch
from torch.nn import functional

from tests.strides.arrangements import LAYOUTS
from tests.strides.calls import Case
from tests.strides.outcomes import compared, eager_outcome, fake_outcome
from torchfake import fake_mode


def norm(x, training=True):
    return functional.batch_norm(
        x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]), None, None, training
    )


def of_ones(convolution, window):
    def call(x):
        return convolution(
            x, torch.ones(x.shape[1], x.shape[1], *[window] * (x.dim() - 2)), padding=1
        )

    return call


CALLS = {
    "batch_norm": norm,
    "batch_norm in evaluation": lambda x: norm(x, training=False),
    "batch_norm of a resized image": lambda x: norm(functional.interpolate(x, scale_factor=2)),
    "channel_shuffle of single channels": lambda x: functional.channel_shuffle(x, x.shape[1]),
    "channel_shuffle of one group": lambda x: functional.channel_shuffle(x, 1),
    "pixel_shuffle": lambda x: functional.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: functional.pixel_unshuffle(x, 2),
    "unfold": lambda x: functional.unfold(x, (1, 2)),
    "fold": lambda x: functional.fold(functional.unfold(x, 1), x.shape[2:], 1),
    "conv2d of one element": of_ones(functional.conv2d, 1),
    "conv2d": of_ones(functional.conv2d, 2),
    "conv_transpose2d": of_ones(functional.conv_transpose2d, 1),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x),
    "index_add": lambda x: x.index_add(1, torch.zeros(1, dtype=torch.int64), x[:, :1]),
}
SIZES = list(itertools.product((0, 2), (1, 4), (1, 2), (1, 4)))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_images_of_few_elements(name):
    for i, size in enumerate(SIZES):
        for layout in list(LAYOUTS)[i % 3 :: 3]:
            x = LAYOUTS[layout](torch.rand(size)).detach().requires_grad_()
            case = Case(name, 0, "", layout, lambda: CALLS[name], ((x,), {}))
            real, fake = eager_outcome(case), fake_outcome(case)
            assert type(real) is type(fake), (size, layout, real, fake)
            assert compared(real, fake) is None, (size, layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_gradient_of_a_weight_of_single_channels(batch, dtype):
    """Such a weight is contiguous in each memory format; oneDNN gives its gradient another one."""

    def program(channels, groups, window):
        x = torch.ones(batch, channels, 4, 4, dtype=dtype).to(memory_format=torch.channels_last)
        sizes = 2 * groups, channels // groups, window, window
        weight = torch.ones(sizes, dtype=dtype, requires_grad=True)
        functional.conv2d(x, weight, groups=groups).sum().backward()
        return weight.grad.stride()

    for case in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 3)):
        if case[0] % case[1] == 0:
            eager = program(*case)
            with fake_mode():
                assert program(*case) == eager, case
