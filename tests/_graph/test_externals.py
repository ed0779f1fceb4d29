"""Real tensors among the arguments of recorded operations: references, copies, later writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from torchfake import deferred_init, deferred_mode, errors, is_deferred, materialize_tensor


def test_real_tensors_are_held_by_reference() -> None:
    table = torch.arange(4.0)
    with deferred_mode():
        weight = torch.empty(4).copy_(table) * 2
        array = torch.empty(2).copy_(torch.from_numpy(np.ones(2)))
    assert materialize_tensor(array).tolist() == [1, 1]
    table.add_(1)
    location = r"aten.copy_.default at .*test_externals.py:\d+"
    with pytest.raises(errors.ReplayError, match=location):
        materialize_tensor(weight)
    assert is_deferred(weight)


def test_inference_tensors_are_copied_if_small() -> None:
    with torch.inference_mode():
        small, large = torch.ones(4), torch.ones(100_000)
    with deferred_mode():
        weight = torch.zeros(4) + small
        with pytest.raises(errors.RecordError, match=r"real inference tensor of shape \[100000\]"):
            torch.zeros(100_000) + large
    with torch.inference_mode():
        small.add_(1)
    assert materialize_tensor(weight).tolist() == [1, 1, 1, 1]


def test_writes_that_increment_no_version() -> None:
    """Through ``.data``, or past torch: most are found by a sample of elements."""
    source = nn.Linear(3, 4)
    array = np.ones(3)
    layer = deferred_init(nn.Linear, 3, 4)
    layer.load_state_dict(source.state_dict())
    with deferred_mode():
        copied = torch.zeros(3).copy_(torch.from_numpy(array))
    source.weight.data.normal_()
    array[1] = 5
    for tensor in (layer.weight, copied):
        with pytest.raises(errors.ReplayError, match="written in place since"):
            materialize_tensor(tensor)
