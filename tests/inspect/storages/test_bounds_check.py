"""Lookups with indices that eager refuses are refused, with the error of eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchfake.inspect import check, estimate


@pytest.mark.parametrize("run", [estimate, check])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int16])
def test_the_dtype_of_indices_is_refused_before_their_values(run, dtype) -> None:
    module, ids = nn.Embedding(4, 8), torch.full((2, 3), 9, dtype=dtype)
    with pytest.raises(RuntimeError) as expected:
        module(ids)
    with pytest.raises(Exception, match="to have one of the following scalar types") as caught:
        run(module, ids)
    assert str(expected.value).splitlines()[0] in str(caught.value)


def test_an_index_that_is_known_to_be_out_of_range() -> None:
    with pytest.raises(IndexError, match="index out of range in self"):
        estimate(nn.Embedding(4, 8), torch.full((2, 3), 9))
