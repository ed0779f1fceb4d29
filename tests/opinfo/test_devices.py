"""The devices of results on fake devices: those that torch's own FakeTensorMode says."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from torchfake import fake_mode

STRIDE = 40  # each 40th operator of the database
_FAILS = (NotImplementedError, RuntimeError, TypeError, ValueError, AssertionError, IndexError)


def devices_of(result: Any) -> list[torch.device]:
    return [leaf.device for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def moved(value: Any, device: str) -> Any:
    return pytree.tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, value)


def outcome(op: Any, sample: Any, device: str) -> list[torch.device] | None:
    """The devices of the results; None if torch or we refuse the call without values."""
    try:
        args = moved((sample.input, *sample.args), device)
        return devices_of(op(*args, **moved(sample.kwargs, device)))
    except _FAILS:
        return None


@pytest.mark.filterwarnings("ignore")  # of operators in beta
@pytest.mark.parametrize("device", ["xpu:1"])
def test_results_are_on_the_devices_that_torch_says(device: str) -> None:
    compared = 0
    for op in op_db[::STRIDE]:
        samples = op.sample_inputs("cpu", torch.float32) if torch.float32 in op.dtypes else []
        for sample in itertools.islice(samples, 2):
            with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
                expected = outcome(op, sample, device)
            with fake_mode(fake_device=device[:-2], num_devices=2), torch.no_grad():
                found = outcome(op, sample, device)
            if expected is not None and found is not None:
                compared += 1
                assert found == expected, (op.name, sample)
    assert compared > 8
