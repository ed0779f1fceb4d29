"""Collectives on fakes have the metadata of real ones and no values; nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from torchfake import errors, fake_like, fake_mode, is_fake
from torchfake._operators.handlers import collectives
from torchfake._operators.handlers.special_operators import handler_of

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
"""Torch 2.13 has new names for some; 2.11 has the old ones."""


@pytest.fixture(params=["fake", "gloo"])
def group(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    """A fake group of four ranks, and a real group of this process alone."""
    if request.param == "fake":
        dist.init_process_group("fake", rank=1, world_size=4)
    else:
        store = dist.FileStore(str(tmp_path / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def in_place(n: int, make: Any) -> dict[str, Any]:
    """The results of every collective that writes its arguments."""
    full, part = make(4 * n), make(4)
    parts = [make(4) for _ in range(n)]
    one = make(4)
    calls = {
        "all_reduce": lambda: dist.all_reduce(one),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([one, part]),
        "all_gather": lambda: dist.all_gather(parts, one),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(full, one),
        "reduce_scatter": lambda: dist.reduce_scatter(one, parts),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(one, full),
        "all_to_all": lambda: dist.all_to_all([make(4) for _ in range(n)], parts),
        "all_to_all_single": lambda: dist.all_to_all_single(full, make(4 * n)),
        "broadcast": lambda: dist.broadcast(one, 0),
        "reduce": lambda: dist.reduce(one, 0),
        "barrier": dist.barrier,
    }
    return {name: call() for name, call in calls.items()}


def test_collectives_that_write(group: Any) -> None:
    with fake_mode():
        assert not any(work is not None for work in in_place(group.size(), torch.ones).values())
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert work.wait()


def test_results_have_no_known_value(group: Any) -> None:
    with fake_mode():
        known = torch.ones(3)
        assert known.tolist() == [1.0, 1.0, 1.0]
        dist.all_reduce(known)
        with pytest.raises(errors.UnknownValueError):
            known.tolist()
        other = functional.all_reduce(torch.ones(3), "sum", group)
        with pytest.raises(errors.UnknownValueError):
            other.tolist()


def test_real_tensors_are_not_written(group: Any) -> None:
    real = torch.ones(4 * group.size())
    with pytest.raises(errors.RealTensorWriteError, match="a collective would write"):
        dist.all_gather_into_tensor(real, fake_like(torch.ones(4)))
    assert real.sum() == real.numel()


def test_functional_collectives(group: Any) -> None:
    n = group.size()
    real = torch.ones(4 * n, 3)
    shapes = {
        "all_reduce": (4 * n, 3),
        "all_gather": (4 * n * n, 3),
        "reduce_scatter": (4, 3),
        "all_to_all": (4 * n, 3),
        "broadcast": (4 * n, 3),
    }

    def made(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "all_reduce": functional.all_reduce(x, "sum", group),
            "all_gather": functional.all_gather_tensor(x, 0, group),
            "reduce_scatter": functional.reduce_scatter_tensor(x, "sum", 0, group),
            "all_to_all": functional.all_to_all_single(x, [4] * n, [4] * n, group),
            "broadcast": functional.broadcast(x, 0, group),
        }

    with fake_mode():
        found = made(fake_like(real))
        assert all(is_fake(t) for t in found.values())
        assert {name: tuple(t.shape) for name, t in found.items()} == shapes
        waited = functional.wait_tensor(found["all_reduce"])
        assert waited is found["all_reduce"]
    if n == 1:  # a real group of one can be asked
        for name, tensor in made(real).items():
            assert functional.wait_tensor(tensor).shape == shapes[name]
            assert tensor.stride() == found[name].stride()
            assert tensor.dtype == found[name].dtype


def test_every_collective_is_an_operator_of_this_torch() -> None:
    for name in collectives.COLLECTIVES:
        namespace, packet = name.split("::")
        operator = getattr(getattr(torch.ops, namespace), packet)
        assert operator.overloads() == ["default"]
        assert handler_of(operator.default) is collectives.run_collective
    assert handler_of(torch.ops._c10d_functional.wait_tensor.default) is collectives.wait_tensor
    written = {name for name, spec in collectives.COLLECTIVES.items() if spec.written is not None}
    assert {n for n in collectives.COLLECTIVES if n.startswith("c10d::")} - written == {
        "c10d::send"
    }


@pytest.mark.parametrize("size", [1, 2, 5])
def test_bytes_sent_by_ring_algorithms(size: int) -> None:
    def sent(collective: str) -> int:
        return collectives.Message(collective, 1000 * size, None).sent_bytes(size)

    assert sent("all_gather") == 1000 * (size - 1)
    assert sent("all_reduce") == 2 * sent("reduce_scatter") == 2000 * (size - 1)
    assert sent("broadcast") == 1000 * size
