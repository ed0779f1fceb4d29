"""``any`` and ``all`` with ``out=`` of bools, of bytes, and of other dtypes."""

import itertools

import pytest
import torch

from torchfake import deferred_mode, fake_mode


def outcome(function, rest, dtype, into, shape):
    torch.manual_seed(0)
    x, out = torch.rand(30, 4).mul(3).to(dtype), torch.ones(shape, dtype=into)
    try:
        result = function(x, *rest, out=out)
    except RuntimeError as error:
        return str(error)
    return result is out, result.dtype, result.shape, result.stride(), result._version


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("function", [torch.any, torch.all])
@pytest.mark.parametrize("rest", [(), (0,), (1, True), ((0, 1),)])
def test_equal_eager(function, rest, mode):
    dtypes = (torch.uint8, torch.bool, torch.float32)
    for case in itertools.product(dtypes, (*dtypes, torch.int64), ((0,), (7,), (4,))):
        expected = outcome(function, rest, *case)
        with mode():
            assert outcome(function, rest, *case) == expected, case
