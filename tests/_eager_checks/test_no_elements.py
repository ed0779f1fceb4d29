"""Indices into tensors without elements: each operator refuses them in its own way."""

import pytest
import torch
from torch.nn import functional

from torchfake import deferred_mode, fake_mode


def along(x, index, dim):
    """The index, for operators that take one of as many dims as the tensor has."""
    shape = [index.numel() if d == dim else n for d, n in enumerate(x.shape)]
    return index.reshape([-1 if d == dim else 1 for d in range(x.dim())]).expand(shape)


def rows(x, index, dim):
    return torch.ones([index.numel() if d == dim else n for d, n in enumerate(x.shape)])


CALLS = {
    "x[i]": lambda x, i, d: x[(slice(None),) * d + (i,)],
    "index_put": lambda x, i, d: x.index_put((None,) * d + (i,), torch.tensor(1.0)),
    "index_select": lambda x, i, d: x.index_select(d, i),
    "index_add": lambda x, i, d: x.index_add(d, i, rows(x, i, d)),
    "index_copy": lambda x, i, d: x.index_copy(d, i, rows(x, i, d)),
    "index_fill": lambda x, i, d: x.index_fill(d, i, 1.0),
    "index_reduce": lambda x, i, d: x.index_reduce(d, i, rows(x, i, d), "amax"),
    "gather": lambda x, i, d: x.gather(d, along(x, i, d)),
    "scatter": lambda x, i, d: x.scatter(d, along(x, i, d), 1.0),
    "scatter_add": lambda x, i, d: x.scatter_add(d, along(x, i, d), rows(x, i, d)),
    "take": lambda x, i, d: x.take(i),
    "put": lambda x, i, d: x.put(i, torch.ones(i.numel())),
    "embedding": lambda x, i, d: functional.embedding(i, x),
}
POOLS = {
    "adaptive_avg_pool1d": lambda x: functional.adaptive_avg_pool1d(x[0], 2),
    "adaptive_avg_pool2d": lambda x: functional.adaptive_avg_pool2d(x, 2),
    "adaptive_avg_pool3d": lambda x: functional.adaptive_avg_pool3d(x, 2),
    "grid_sample": lambda x: functional.grid_sample(
        x, torch.zeros(x.shape[0], 2, 2, 2), align_corners=False
    ),
}


def outcome(function, shape, index, dim):
    try:
        return function(torch.ones(shape), torch.tensor(index, dtype=torch.int64), dim).shape
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_known_indices(name):
    for shape in ((0,), (0, 3), (3, 0), (0, 0), (2, 3), (2, 0, 3), (2, 3, 0)):
        for dim in range(len(shape)):
            for index in ([], [0], [0, 0], [5, 5], [-1]):
                expected = outcome(CALLS[name], shape, index, dim)
                with fake_mode():
                    assert outcome(CALLS[name], shape, index, dim) == expected, (shape, dim, index)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_unknown_indices_are_refused_if_all_are(name):
    index = torch.zeros(2, dtype=torch.int64)
    for shape in ((0, 3), (3, 0), (0, 0)):
        expected = outcome(CALLS[name], shape, index.tolist(), 0)
        with fake_mode():
            x, unknown = torch.ones(shape), torch.randint(0, 1, (2,))
            try:
                found = CALLS[name](x, unknown, 0).shape
            except Exception as error:
                found = type(error), str(error)
        assert found == expected, shape


def test_a_vector_and_the_second_dim_have_kernels_of_their_own():
    for shape, dim in (((3,), 0), ((2, 3), 0), ((2, 3), 1), ((2, 3, 2), 1), ((2, 3, 2), 2)):
        expected = outcome(CALLS["index_select"], shape, [5], dim)
        with fake_mode():
            assert outcome(CALLS["index_select"], shape, [5], dim) == expected
    expected = outcome(CALLS["index_add"], (3,), [5], 0)
    with fake_mode():
        assert outcome(CALLS["index_add"], (3,), [5], 0) == expected


@pytest.mark.parametrize("name", POOLS)
def test_pools(name):
    for shape in ((0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0), (2, 3, 3, 4)):
        expected = outcome(lambda x, *_: POOLS[name](x), shape, [0], 0)
        with fake_mode():
            assert outcome(lambda x, *_: POOLS[name](x), shape, [0], 0) == expected, shape


@pytest.mark.parametrize("shifts", [1, (), (1, 2), (1,)])
@pytest.mark.parametrize("dims", [(), 0, (0, 1), (1,), (9,), (-7, 0)])
def test_rolls(shifts, dims):
    for shape in ((0,), (0, 3), (2, 0), (2, 3), ()):
        expected = outcome(lambda x, *_: x.roll(shifts, dims), shape, [0], 0)
        with fake_mode():
            assert outcome(lambda x, *_: x.roll(shifts, dims), shape, [0], 0) == expected, shape


SEVERAL = {
    "convolution": lambda: functional.conv2d(torch.ones(1, 3, 4, 4), torch.ones(2, 3, 0, 1)),
    "no batch": lambda: functional.conv2d(torch.ones(0, 3, 4, 4), torch.ones(2, 3, 1, 1)),
    "index_reduce": lambda: torch.ones(1).index_reduce(0, torch.tensor([0]), torch.ones(0), "amax"),
    "nll_loss": lambda: functional.nll_loss(
        torch.ones(2, 3, 2, 2), torch.ones(2, 0, 2, dtype=torch.int64)
    ),
    "put": lambda: torch.ones(()).put(torch.ones(0, dtype=torch.int64), torch.ones(1)),
    "masked_scatter": lambda: torch.ones(5).masked_scatter(torch.ones(5) > 0, torch.ones(0)),
    "lstsq": lambda: torch.linalg.lstsq(torch.ones(3, 3, 3), torch.ones(3, 0, 0)).solution,
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_any_tensor_may_have_none(name):
    expected = outcome(lambda *_: SEVERAL[name](), (), [0], 0)
    with fake_mode():
        assert outcome(lambda *_: SEVERAL[name](), (), [0], 0) == expected


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("size", [(0, 2, 3, 3), (2, 0, 3, 3), (1, 2, 3, 3)])
def test_a_convolution_of_no_images_mixes_dtypes(size, mode):
    def program():
        x, weight = torch.ones(size, dtype=torch.float64), torch.ones(2, size[1], 1, 1)
        try:
            y = functional.conv2d(x.requires_grad_(), weight.requires_grad_())
        except RuntimeError:
            return "refused"
        gradients = torch.autograd.grad(y.sum(), (x, weight))
        return [(t.dtype, t.shape, t.stride()) for t in (y, *gradients)]

    expected = program()
    with mode():
        assert program() == expected
