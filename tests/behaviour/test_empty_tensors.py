"""A tensor without elements has a known value, whatever is known of the storage that it views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torchfake import deferred_mode, fake_like, fake_mode
from torchfake.errors import UnknownValueError

_PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda empty: empty.sum().item(),
    "sum of a dim": lambda empty: empty[:, :5].sum(0).tolist(),
    "mean": lambda empty: str(empty.mean().item()),
    "prod": lambda empty: empty.prod().item(),
    "norm": lambda empty: empty.norm().item(),
    "all, any": lambda empty: (bool((empty > 0).all()), bool((empty > 0).any())),
    "tolist": lambda empty: empty.tolist(),
    "tolist of a transpose": lambda empty: empty[:, :2].t().tolist(),
    "numpy": lambda empty: empty.numpy().shape,
    "asarray": lambda empty: np.asarray(empty).shape,
    "dlpack": lambda empty: torch.utils.dlpack.from_dlpack(empty).shape,
    "equal": lambda empty: torch.equal(empty, empty.clone()),
    "equal to another shape": lambda empty: torch.equal(empty, torch.ones(1)),
    "allclose": lambda empty: torch.allclose(empty, empty + 1),
    "mask": lambda empty: empty[empty > 0].shape,
    "masked_select": lambda empty: empty.masked_select(empty > 0).shape,
    "nonzero": lambda empty: (empty.nonzero().shape, empty.argwhere().shape),
    "unique": lambda empty: empty.unique().tolist(),
    "in": lambda empty: 3.0 in empty,
    "cat with known values": lambda empty: torch.cat([empty[:, 0], torch.ones(3)]).tolist(),
    "product": lambda empty: (empty[:, :3].t() @ empty[:, :2]).tolist(),
    "bincount": lambda empty: empty[:, 0].long().bincount(minlength=2).tolist(),
    "repeat_interleave": lambda empty: empty[:, 0].repeat_interleave(empty[:, 0].long()).shape,
    "index_add": lambda empty: torch.ones(4).index_add(0, torch.arange(0), empty[:, 0]).tolist(),
    "write of a part": lambda empty: _written(slice(0, 0), empty[:, 0]),
    "write by indices": lambda empty: _written(torch.arange(0), empty[:, 0]),
    "write to no elements": lambda empty: _written(slice(0, 0), torch.randn(1000).sum()),
    "infinity written to no elements": lambda empty: bool(
        empty.fill_(torch.inf)._base.isinf().any()  # type: ignore[union-attr]
    ),
    "normal_ of no elements": lambda empty: (empty.normal_().tolist(), torch.rand(2).tolist()),
    "out= of no elements": lambda empty: torch.add(empty, 1, out=torch.empty(0, 1000)).tolist(),
    "resize_ of no elements": lambda empty: torch.ones(0).resize_(3).fill_(2).tolist(),
    "arithmetic twice": lambda empty: [(empty[:, :2] + 1).sum().item() for _ in range(3)],
    "max": lambda empty: empty.max(),
    "item": lambda empty: empty.item(),
}


def _written(index: Any, value: torch.Tensor) -> Any:
    target = torch.ones(4)
    target[index] = value
    return target.tolist()


def _outcome(program: Callable[[Any], Any]) -> Any:
    """What a program gives, or the error that it raises, of an empty view of a large tensor."""
    torch.manual_seed(0)
    empty = torch.randn(1000, 1000)[:0]
    try:
        return program(empty)
    except (RuntimeError, IndexError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_tensor_without_elements_has_eagers_value(name: str) -> None:
    expected = _outcome(_PROGRAMS[name])
    for _ in range(2):  # the second time from the cache, where there is a recipe
        with fake_mode():
            found = _outcome(_PROGRAMS[name])
        assert found == expected


@pytest.mark.parametrize("name", sorted(set(_PROGRAMS) - {"max"}))
def test_so_it_has_in_a_deferred_mode(name: str) -> None:
    expected = _outcome(_PROGRAMS[name])
    with deferred_mode():
        assert _outcome(_PROGRAMS[name]) == expected


def test_a_row_of_the_same_tensor_is_not_known() -> None:
    with fake_mode():
        large = torch.randn(1000, 1000)
        assert large[:0].sum().item() == 0
        with pytest.raises(UnknownValueError):
            large[:1].sum().item()
        with pytest.raises(UnknownValueError):
            large.sum().item()


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("size", [(0, 0), (1, 0, 3, 1), (0, 3), (3, 0, 2)])
@pytest.mark.parametrize("reduce", [torch.var, torch.std, torch.var_mean, torch.std_mean])
def test_deviations_of_no_elements_are_contiguous(reduce: Any, size: tuple[int, ...]) -> None:
    for x in (torch.empty(size), torch.empty(size[::-1]).permute(*reversed(range(len(size))))):
        for dim in range(len(size)):
            expected = reduce(x, dim, keepdim=True)
            results = zip(
                _as_tuple(reduce(fake_like(x), dim, keepdim=True)), _as_tuple(expected), strict=True
            )
            assert all(fake.stride() == real.stride() for fake, real in results)


def _as_tuple(results: Any) -> Any:
    return (results,) if isinstance(results, torch.Tensor) else results
