"""Steps of the user's own: byte for byte what real ones hold, and nothing real is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    loss_parallel,
    parallelize_module,
)

from tests.distributed.worker_counted import Counting, locals_of
from tests.inspect.memory.memory_oracle import StorageCounter
from tests.inspect.steps.programs import PROGRAMS, lbfgs
from torchfake import estimate, fit
from torchfake.distributed.ranks.fake_process_group import simulated_rank
from torchfake.errors import InputsError


def counted_peaks(step: Any, args: Any, held: list[torch.Tensor]) -> tuple[int, int]:
    counter = StorageCounter(held)
    with counter:
        step(*args)
        first, counter.peak_bytes = counter.peak_bytes, counter.num_bytes
        step(*args)
    return first, counter.peak_bytes


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_byte_exact(name: str) -> None:
    step, args, held = PROGRAMS[name]()
    before = [tensor.detach().clone() for tensor in held]
    state = torch.get_rng_state()
    found = estimate(step, *args)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(held, before, strict=True))
    assert all(tensor.grad is None for tensor in held)
    assert (found.first_step_peak_bytes, found.peak_bytes) == counted_peaks(step, args, held)


def test_phases_categories_and_modules() -> None:
    step, args, held = PROGRAMS["arguments"]()
    found = estimate(step, *args)
    sizes = found.peak.by_category
    assert found.class_name == "step"
    assert (found.mode, found.peak.phase) == ("training", "optimizer")
    parameters = sum(tensor.nbytes for tensor in held[:-2])
    assert sizes["parameters"] == sizes["gradients"] == parameters
    assert sizes["optimizer state"] == 2 * parameters + 4 * 4  # a count for each
    assert sizes["inputs"] == sum(tensor.nbytes for tensor in held[-2:])
    assert set(found.by_module) == {"", "0", "2"}
    two = estimate(PROGRAMS["two models"]()[0])
    assert {"generator.0", "critic.2"} <= set(two.by_module)
    assert estimate(PROGRAMS["inference"]()[0]).mode == "inference"


def test_on_a_gpu() -> None:
    step, args, _ = PROGRAMS["accumulation"]()
    found = estimate(step, *args, gpu="h100-80gb")
    assert found.device == "cuda:0"
    assert found.gpu is not None
    assert found.peak_reserved_bytes is not None
    assert found.peak_reserved_bytes >= found.peak_bytes
    (fits,) = fit(found, "h100-80gb", vary=None)
    assert fits.fits


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_loss_that_is_split_over_ranks() -> None:
    """Tensor parallelism, as rank 0 of a group through which nothing is sent."""
    with simulated_rank(0, 4):
        mesh = init_device_mesh("cpu", (4,))
        head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        model = nn.Sequential(nn.Embedding(96, 32), nn.Linear(32, 96, bias=False))
        parallelize_module(model, mesh, {"1": head})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randint(0, 90, (8, 16)), torch.randint(0, 90, (8 * 16,))

        def step() -> None:
            with loss_parallel():
                loss = F.cross_entropy(model(x).flatten(0, 1), y)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        found = estimate(step)
        counting = Counting()  # of shards
        for tensor in locals_of([*model.parameters(), x, y, mesh.mesh]):
            counting.observe(tensor.untyped_storage())
        with counting:
            step()
    assert found.peak_bytes == found.first_step_peak_bytes == counting.peak_bytes


def test_what_cannot_be() -> None:
    step, args, _ = PROGRAMS["arguments"]()
    with pytest.raises(InputsError, match="optimizer= is for a module"):
        estimate(step, *args, optimizer="adamw")
    with pytest.raises(InputsError, match="step is a step of your own"):
        fit(estimate(step, *args), "h100-80gb")
    with pytest.raises(
        InputsError, match=r"LBFGS decides by values.*100 pairs of vectors .*, 170 kB"
    ):
        estimate(lbfgs()[0])
    batches = (tensor for tensor in [torch.ones(3)])

    def reads() -> torch.Tensor:
        return next(batches) + torch.ones(3)

    with pytest.raises(InputsError, match=r"a generator that cannot be copied.*as an argument"):
        estimate(reads)
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module is needed, not the class Linear"):
        estimate(torch.nn.Linear, torch.ones(3))
