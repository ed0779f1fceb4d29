"""Real tensors among the arguments of recorded operations: references, copies, later writes."""

from __future__ import annotations

from collections.abc import Callable

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
    """Through ``.data``, or past torch: they are found by a digest of the bytes."""
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


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "odd start": lambda t: t.view(-1)[3:],
    "every second": lambda t: t[:, ::2],
    "expanded": lambda t: t.expand(5, *t.shape),
    "conjugate": lambda t: t.view(torch.complex64).conj(),
    "bytes": lambda t: t.view(-1).view(torch.uint8)[5:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_rows", [3, 300])
def test_a_write_to_any_element_is_found(layout: str, num_rows: int) -> None:
    """Of small tensors by their bytes, of large ones by sums of them."""
    array = np.arange(num_rows * 400, dtype=np.float32).reshape(num_rows, 400)
    table = LAYOUTS[layout](torch.from_numpy(array))
    with deferred_mode():
        weight = table.clone()
    generator = np.random.default_rng(0)
    for _ in range(20):
        expected = table.clone()
        row, column = int(generator.integers(num_rows)), int(generator.integers(400))
        before = array[row, column]
        array[row, column] = -1
        if not torch.equal(table, expected):
            with pytest.raises(errors.ReplayError, match="written in place since"):
                materialize_tensor(weight)
        array[row, column] = before
    assert torch.equal(materialize_tensor(weight), table)


def test_a_permutation_of_a_large_tensor_is_found() -> None:
    array = np.arange(100_000, dtype=np.float64)
    for change in (lambda: array[::-1].copy(), lambda: np.roll(array, 1)):
        with deferred_mode():
            weight = torch.from_numpy(array) * 2
        array[...] = change()
        with pytest.raises(errors.ReplayError, match="written in place since"):
            materialize_tensor(weight)


@pytest.mark.parametrize("places", [(8, 9), (8, 400), (40_000, 40_001), (8, 90_000)])
def test_an_exchange_of_two_elements_is_found(places: tuple[int, int]) -> None:
    """Through numpy, in memory of which sums are kept."""
    table = torch.arange(100_000, dtype=torch.float64)
    with deferred_mode():
        weight = torch.empty_like(table).copy_(table)
    array, (i, j) = table.numpy(), places
    array[i], array[j] = array[j], array[i]
    with pytest.raises(errors.ReplayError):
        materialize_tensor(weight)
