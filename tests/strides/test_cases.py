"""Strides that fakes once had otherwise than eager: each call forward and backward, in layouts."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.strides.arrangements import LAYOUTS
from tests.strides.calls import Case
from tests.strides.outcomes import difference, eager_outcome
from torchfake import fake_mode

LAST = torch.channels_last


def floats(*size):
    return torch.rand(size, requires_grad=True)


def last(*size):
    return torch.rand(size).to(memory_format=LAST).requires_grad_()


def both(*size):
    """Contiguous and channels last at once, with the strides of the latter."""
    strides = torch.empty(size).to(memory_format=LAST).stride()
    return torch.rand(size).as_strided(size, strides).requires_grad_()


def pooled_context(x):
    """The global context of UPerNet and PSP."""
    x = functional.batch_norm(functional.adaptive_avg_pool2d(x, 1), None, None, training=True)
    return functional.interpolate(x, (4, 4), mode="bilinear")


def norm(x):
    return functional.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]), training=True)


def norm_and_resize(x):
    return functional.interpolate(norm(x), scale_factor=2)


def native_group_norm(x):
    """Called directly, it gets what lies in no memory format."""
    sizes = x.shape[0], x.shape[1], x.shape[2:].numel()
    return torch.native_group_norm(x, None, None, *sizes, 1, 1e-5)[0]


CALLS = {
    "roll": (lambda x: x.roll(1, 2), last(2, 3, 4, 5)),
    "roll of two dims": (lambda x: x.roll((1, 2), (2, 3)), last(2, 3, 4, 5)),
    "fftshift": (torch.fft.fftshift, last(2, 3, 4, 5)),
    "ifftshift": (torch.fft.ifftshift, last(2, 3, 4, 5)),
    "logsigmoid": (functional.logsigmoid, last(2, 3, 4, 5)),
    "rrelu": (functional.rrelu, last(2, 3, 4, 5)),
    "rrelu in training": (lambda x: functional.rrelu(x, training=True), last(2, 3, 4, 5)),
    "poisson": (torch.poisson, torch.rand(2, 3, 4, 5).to(memory_format=LAST)),
    "one_hot": (lambda x: functional.one_hot(x, 3), torch.zeros(4, 5, dtype=torch.int64).t()),
    "isin": (lambda x: torch.isin(x, 1), torch.rand(2, 3, 4, 5).to(memory_format=LAST)),
    "channel_shuffle": (lambda x: functional.channel_shuffle(x[:, ::2], 2), last(2, 8, 4, 5)),
    "index_fill": (lambda x: x[:, ::2].index_fill(1, torch.tensor([0]), 2.0), last(2, 8, 4, 5)),
    "batch_norm of maps": (norm, both(2, 3, 1, 1)),
    "batch_norm of a channel": (norm, both(2, 1, 4, 5)),
    "batch_norm of contiguous maps": (norm_and_resize, floats(2, 3, 1, 1)),
    "batch_norm of maps, resized": (norm_and_resize, both(2, 3, 1, 1)),
    "global context": (pooled_context, last(2, 3, 4, 4)),
    "matrix_exp": (torch.matrix_exp, floats(4, 3, 3).mT.detach().requires_grad_()),
    "max_pool3d": (lambda x: functional.max_pool3d(x, 2), floats(3, 4, 4, 4)),
    "max_pool1d of a length": (
        lambda x: functional.max_pool1d(x, 1),
        torch.rand(2, 1, 3).transpose(1, 2),
    ),
    "max_pool1d of a channel": (
        lambda x: functional.max_pool1d(x, 1),
        torch.rand(8).as_strided((2, 1, 4), (4, 1, 1)),
    ),
    "max_pool3d with channels last": (lambda x: functional.max_pool3d(x, 2), last(3, 4, 4, 4)),
    "log_softmax": (lambda x: x.log_softmax(1), both(2, 1, 1, 5)),
    "complex": (torch.complex, both(2, 1, 1, 5), floats(2, 1, 1, 5)),
    "polar": (torch.polar, both(2, 1, 1, 5), floats(2, 1, 1, 5)),
    "mse_loss": (functional.mse_loss, last(2, 3, 4, 5), floats(2, 3, 4, 5)),
    "prelu": (functional.prelu, both(2, 1, 1, 5), floats(1)),
    "tril": (torch.tril, both(2, 1, 1, 5)),
    "group_norm": (lambda x: functional.group_norm(x, 1), both(2, 3, 1, 1)),
    "group_norm of a row": (lambda x: functional.group_norm(x, 1), both(1, 6, 1, 4)),
    "native_group_norm": (native_group_norm, last(2, 3, 4, 5)),
    "fft": (lambda x: torch.fft.fft(x, dim=1), last(2, 3, 4, 5)),
    "fft2": (lambda x: torch.fft.fft2(x, dim=(1, 0)), last(2, 3, 4, 5)),
    "rfftn": (torch.fft.rfftn, last(2, 3, 4, 5)),
    "irfftn": (lambda x: torch.fft.irfftn(x, dim=(2, 1)), last(2, 3, 4, 5)),
    "leaky_relu": (functional.leaky_relu, both(2, 1, 1, 5)),
    "hardswish": (functional.hardswish, both(2, 1, 1, 5)),
    "glu": (lambda x: functional.glu(x, 1), last(2, 4, 5, 5)),
    "softsign, two gradients": (functional.softsign, last(3, 4, 1, 1)[:, ::2].detach()
                                .requires_grad_()),
    "rms_norm, two gradients": (lambda x: functional.rms_norm(x, (5,)), both(2, 1, 1, 5)),
    "mish": (functional.mish, both(2, 1, 1, 5)),
    "angle": (torch.angle, last(2, 3, 4, 5)),
    "angle of complex numbers": (torch.angle, torch.rand(3, 4, dtype=torch.complex64).t()),
    "masked_select": (lambda x: x.masked_select(torch.tensor([[[[True]]]])), last(2, 3, 4, 5)),
    "out=": (lambda x, y: torch.mul(x.detach(), y.detach(), out=torch.empty(0)),
             last(2, 3, 4, 5), last(2, 3, 4, 5)),
}  # fmt: skip


if hasattr(torch.linalg, "matrix_sqrth"):  # since 2.15
    CALLS["matrix_sqrth"] = (torch.linalg.matrix_sqrth, last(2, 2, 4, 4))
    nothing = torch.empty(0, 0, 2, 4).permute(3, 2, 1, 0).requires_grad_()
    CALLS["matrix_sqrth of nothing"] = (torch.linalg.matrix_sqrth, nothing)


def case_of(name):
    function, *args = CALLS[name]
    return Case(name, 0, "all", "all", lambda: function, (tuple(args), {}))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_strides_equal_eager(name):
    assert difference(case_of(name)) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore")
def test_empty_tensors_and_dims_of_one(layout):
    for name, (function, *args) in CALLS.items():
        for length in (0, 1):
            cut = [_arranged(x, length, layout) for x in args]
            case = Case(name, 0, str(length), layout, lambda f=function: f, (tuple(cut), {}))
            assert difference(case) is None, name


def test_memory_behind_an_empty_tensor_is_copied():
    def copied():
        return torch.as_strided_copy(torch.rand(3, 3)[:0], (2, 1, 2), (1, 7, 1)).stride()

    with fake_mode():
        found = copied()
    assert found == copied()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [(), (1,), (-1, True)])
def test_gradients_of_products_are_quotients(layout, dim):
    x = LAYOUTS[layout](torch.rand(2, 3, 4, 5) + 1).detach().requires_grad_()
    case = Case("prod", 0, "", layout, lambda: lambda x: x.prod(*dim), ((x,), {}))
    assert difference(case) is None


@pytest.mark.parametrize("size", [(), (0,), (2, 0), (2, 3, 0, 1)])
def test_gradients_of_products_of_nothing(size):
    for layout, arrange in LAYOUTS.items():
        for dims in ((), (-1,), (-1, True)):
            x = arrange(torch.rand(size)).detach().requires_grad_()
            case = Case("prod", 0, "", layout, lambda d=dims: lambda t: t.prod(*d), ((x,), {}))
            assert difference(case) is None, (layout, dims)


def _arranged(tensor, length, layout):
    cut = LAYOUTS[layout](tensor.detach().narrow(-1, 0, min(length, tensor.shape[-1])))
    return cut.detach().requires_grad_(tensor.requires_grad)


def test_eager_refuses_one_volume_whose_channels_seem_to_lie_last():
    assert isinstance(eager_outcome(case_of("max_pool3d with channels last")), RuntimeError)


def test_eager_refuses_attention_of_five_dims():
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    case = Case("attention", 0, "", "", lambda: attention, ((floats(2, 2, 2, 3, 4),) * 3, {}))
    assert isinstance(eager_outcome(case), RuntimeError)
    assert difference(case) is None


def test_eager_refuses_group_norm_of_other_sizes_and_groups():
    x, weight, bias = floats(2, 4, 3), floats(4), floats(4)
    for given in (
        (9, 4, 3, 2),
        (2, 6, 2, 2),
        (2, 2, 6, 2),
        (2, 4, 3, 0),
        (2, 4, 3, -1),
        (2, 4, 3, 3),
    ):
        arguments = (x, weight, bias, *given, 1e-5)
        case = Case("group norm", 0, "", "", lambda: torch.native_group_norm, (arguments, {}))
        assert isinstance(eager_outcome(case), RuntimeError)
        assert difference(case) is None


@pytest.mark.parametrize("size", [(2, 3, 4, 4), (2, 3, 1, 1)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, LAST])
def test_gradients_of_parameters(size, memory_format):
    def make():
        return nn.Sequential(nn.Conv2d(3, 12, 1), nn.BatchNorm2d(12), nn.PReLU(12))

    x = torch.rand(size).to(memory_format=memory_format).requires_grad_()
    assert difference(Case("network", 0, "", "", make, ((x,), {}))) is None


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, LAST])
def test_gradients_of_a_kernel_of_one_element(transposed, memory_format):
    make = nn.ConvTranspose2d if transposed else nn.Conv2d
    for size in ((2, 4, 1, 1), (1, 4, 3, 3), (2, 4, 3, 3)):
        x = torch.rand(size).to(memory_format=memory_format).requires_grad_()
        for format_of_weight in (torch.contiguous_format, LAST):
            case = lambda: make(4, 6, 1).to(memory_format=format_of_weight)  # noqa: B023, E731
            assert difference(Case("convolution", 0, "", "", case, ((x,), {}))) is None


def test_gradients_lie_as_the_number_of_threads_has_them():
    def strides():
        x = torch.rand(2, 8, 4, 4).to(memory_format=LAST)
        layer = nn.Conv2d(8, 12, 1)
        layer(x).sum().backward()
        return layer.weight.grad.stride()

    before = torch.get_num_threads()
    try:
        for number in (1, 2, 1):
            torch.set_num_threads(number)
            with fake_mode():
                found = strides()
            assert found == strides()
    finally:
        torch.set_num_threads(before)
