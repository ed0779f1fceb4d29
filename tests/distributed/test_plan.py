"""Plans: ranks that were not run have the numbers of those that were; torch is left unchanged."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from expecttest import assert_expected_inline
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.distributed import sharded_models as models
from torchfake import deferred_init, errors, estimate, fake_mode, is_fake, materialize_module
from torchfake._tensor.storages import FakeUntypedStorage
from torchfake._torch.backends import bindings
from torchfake.distributed import Plan, plan
from torchfake.distributed import layout as layouts


def uneven_inputs() -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(60, (2, 11)), "labels": torch.randint(60, (2, 11))}


def narrow() -> nn.Module:
    return models.Model(vocabulary=62, width=48, inner=66)


UNEVEN = {
    "fsdp on 5": ((5,), models.fsdp, models.uneven, "cpu"),
    "hybrid on 2 x 3": ((2, 3), models.fsdp, models.uneven, "cuda"),
    "vocabulary on 3": ((3,), models.vocabulary, narrow, "cpu"),
    "both on 3 x 2": ((3, 2), models.two_dimensional, narrow, "cuda"),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_ranks_that_are_inferred_equal_those_that_are_run(name: str) -> None:
    shape, parallelize, build, device = UNEVEN[name]

    def planned(ranks: Any) -> Plan:
        return plan(
            build,
            mesh_shape=shape,
            parallelize=parallelize,
            inputs=uneven_inputs,
            optimizer="sgd" if "vocabulary" in name else "adamw",
            device=device,
            ranks=ranks,
        )

    some, each = (
        planned(None),
        planned(range(some_ranks := layouts.layout_of(shape, None).num_ranks)),
    )
    assert 1 < len(some.by_ranks) < len(each.by_ranks) == some_ranks
    for rank in range(some_ranks):
        inferred, run = some.of_rank(rank), each.of_rank(rank)
        assert run.ranks == (rank,)
        assert inferred.most_bytes == run.most_bytes
        assert inferred.peak_bytes == run.peak_bytes
        assert inferred.traffic == run.traffic
        assert inferred.estimate.first_step_peak_bytes == run.estimate.first_step_peak_bytes
    assert some.peak_bytes == max(found.peak_bytes for found in each.by_ranks)
    assert some.peak_rank == each.peak_rank


def test_parameter_bytes_of_all_ranks_add_up() -> None:
    """FSDP2 pads uneven shards, and holds the padding."""
    for build, padded in ((models.Model, 0), (models.uneven, 2000)):
        found = plan(build, mesh_shape=4, parallelize=models.fsdp, inputs=models.inputs, round_to=1)
        whole = sum(p.nbytes for p in build().parameters())
        held = sum(found.of_rank(rank).parameter_bytes for rank in range(4))
        assert whole <= held <= whole + padded
    rounded = plan(models.uneven, mesh_shape=4, parallelize=models.fsdp, inputs=models.inputs)
    assert all(n % 512 == 0 for n in rounded.highest.most_bytes.values())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_mesh_of_one_is_an_estimate(device: str) -> None:
    with fake_mode():
        model, inputs = models.Model(), models.inputs()
    alone = estimate(model, inputs, optimizer="adamw", device=device)
    found = plan(models.Model, mesh_shape=1, inputs=inputs, optimizer="adamw", device=device)
    assert found.peak_bytes == alone.peak_bytes
    assert found.highest.peak.to_dict() == {
        **alone.peak.to_dict(),
        "line": found.highest.peak.line,
    }
    assert not found.traffic


def test_the_optimizer_on_lists_of_dtensors() -> None:
    """Run on shards, its operators need the same memory as if DTensor ran them."""
    from torchfake.distributed.ranks import foreach_ops

    def peaks() -> list[Any]:
        made = plan(
            models.Model,
            mesh_shape=(2, 2),
            parallelize=lambda m, mesh: (models.tensor(m, mesh["tp"]), models.fsdp(m, mesh["dp"]))[
                2:
            ],
            inputs=models.inputs,
            optimizer="adamw",
        )
        return [(found.most_bytes, found.peak.to_dict(), found.traffic) for found in made.by_ranks]

    ours = peaks()
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(foreach_ops, "FOREACH_OPS", frozenset())
        theirs = peaks()
    assert ours == theirs


def test_phases_and_axes() -> None:
    found = plan(
        models.Model,
        mesh_shape=(4, 2),
        mesh_dim_names=("data", "model"),
        parallelize=lambda module, mesh: (
            models.tensor(module, mesh["model"]),
            models.fsdp(module, mesh["data"]),
        )[2:],
        inputs=models.inputs,
        optimizer="sgd",
        device="cpu",
    )
    rows = {(row.phase, row.collective, row.axis): row for row in found.traffic}
    assert {key[1:] for key in rows} == {
        ("all_gather", "data"), ("reduce_scatter", "data"), ("all_reduce", "model"),
    }  # fmt: skip
    gathered = rows["forward", "all_gather", "data"]
    assert gathered.group_size == 4
    assert gathered.num_calls == 4  # three layers and the root
    assert gathered.num_bytes == 4 * found.highest.parameter_bytes
    assert gathered.sent_bytes == gathered.num_bytes * 3 // 4
    assert ("optimizer", "all_reduce", "model") not in rows


def global_state() -> dict[str, Any]:
    """What a plan changes, and restores."""
    return {
        "initialized": dist.is_initialized(),
        "hook": sys.excepthook,
        "device": DTensor.__dict__.get("device"),
        "resize": FakeUntypedStorage.__dict__["resize_"],
        "group": bindings._group_tensors_by_device_and_dtype,
        "stream": torch.cuda.Stream.__new__,
        "mode": is_fake(torch.ones(1)),
        "available": torch.cuda.is_available(),
        "generator": torch.get_rng_state().tolist(),
        "gradients": torch.is_grad_enabled(),
    }


class Stopped(BaseException):
    """An interrupt, such as Ctrl-C."""


def raising(error: BaseException) -> Any:
    def raises(*_: Any) -> Any:
        raise error

    return raises


@pytest.mark.parametrize("part", ["module_fn", "parallelize", "inputs", "loss", "nothing"])
@pytest.mark.parametrize("error", [ValueError("bad"), Stopped()], ids=["error", "ctrl-c"])
def test_global_state_is_restored(part: str, error: BaseException) -> None:
    arguments: dict[str, Any] = {
        "module_fn": models.Model,
        "parallelize": models.fsdp,
        "inputs": models.inputs,
        "loss": lambda output: output,
    }
    with fake_mode():
        pass  # a process that has made fakes has DTensors report their devices
    before = global_state()
    if part == "nothing":
        plan(mesh_shape=4, optimizer="adamw", **arguments)
    else:
        arguments[part] = raising(error)
        expected = Stopped if isinstance(error, Stopped) else errors.InputsError
        with pytest.raises(expected):
            plan(mesh_shape=4, optimizer="adamw", **arguments)
    assert global_state() == before


def test_a_process_group_can_be_initialized_afterwards() -> None:
    """What DTensor cached for the ranks of the plan is not used for another rank."""
    plan(models.uneven, mesh_shape=4, parallelize=models.fsdp, inputs=models.inputs, device="cpu")
    dist.init_process_group("fake", rank=3, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (4,))
        from torch.distributed.tensor import Shard, distribute_tensor

        mine = distribute_tensor(torch.ones(63, 2), mesh, [Shard(0)])
        assert (mine + 1).to_local().shape == (15, 2)
        assert mine.device == torch.device("cpu")
    finally:
        dist.destroy_process_group()


def refused(**changed: Any) -> str:
    arguments: dict[str, Any] = {
        "module_fn": models.Model,
        "mesh_shape": 4,
        "inputs": models.inputs,
    }
    with pytest.raises(errors.TorchFakeError) as caught:
        plan(**{**arguments, **changed})
    assert "\n" not in str(caught.value)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [
        refused(mesh_shape=(4, 0)),
        refused(mesh_shape=(4, 2), mesh_dim_names=("dp",)),
        refused(module_fn=nn.Linear(2, 2)),
        refused(module_fn=lambda: 3),
        refused(parallelize=raising(ValueError("no such axis"))),
        refused(parallelize=lambda module, mesh: 5),
        refused(inputs=(torch.ones(2, 3),)),
        refused(ranks=[4]),
        refused(device="cuda:1"),
        refused(device="cpu", gpu="h100-80gb"),
    ]
    real = nn.Linear(2, 2)
    messages.append(refused(module_fn=lambda: real))
    dist.init_process_group("fake", rank=0, world_size=2)
    messages.append(refused())
    assert dist.is_initialized()
    dist.destroy_process_group()
    monkeypatch.setattr(dist, "is_available", lambda: False)
    messages.append(refused())
    assert_expected_inline(
        "\n".join(messages),
        """\
InputsError: mesh_shape=(4, 0) is not a mesh shape: give sizes of 1 or more, such as (64, 8)
InputsError: mesh_dim_names=('dp',) does not name the 2 axes of mesh_shape=(4, 2), each by a name of its own
InputsError: module_fn is a Linear: give a function that builds the model, such as lambda: Model(config)
InputsError: module_fn gave 3, not a torch.nn.Module
InputsError: parallelize fails on rank 0 (dp 0) of the mesh dp 4: ValueError: no such axis
InputsError: parallelize gave 5: it returns the module, the schedule of a pipeline, or None
InputsError: the step fails in its own forward on rank 0 (dp 0) of the mesh dp 4: TypeError: Model.forward() missing 1 required positional argument: 'labels'
InputsError: ranks=[4]: give several, such as [0, 3], from 0 to 3
DeviceError: device='cuda:1': each rank has one GPU of its own; give cuda
DeviceError: gpu='h100-80gb' and device='cpu': give one of them
InputsError: module_fn returned a module that has real tensors: build it in module_fn, where they are fake
InputsError: a process group is initialized in this process (fake, 2 ranks), and plan needs one of its own: call it before init_process_group, after destroy_process_group, or in another process
MissingExtraError: this torch was built without torch.distributed, which plan needs: pip install torch""",  # noqa: E501
    )


def test_it_does_not_fit() -> None:
    """Eight billion parameters fit if they are sharded, but not as copies on each rank."""

    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(32768, 32768, bias=False) for _ in range(8)))

    def shard(module: Any, mesh: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        for layer in module:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)

    inputs = lambda: torch.ones(1, 32768)  # noqa: E731
    copies = plan(build, mesh_shape=64, inputs=inputs, optimizer="adamw")
    shards = plan(build, mesh_shape=64, inputs=inputs, optimizer="adamw", parallelize=shard)
    assert (copies.fits, shards.fits) == (False, True)
    assert copies.fit is not None
    assert copies.fit.headroom_bytes < 0
    assert len(shards.by_ranks) == 1
    assert shards.of_rank(63) is shards.highest
    with pytest.raises(errors.InputsError, match="rank 64"):
        shards.of_rank(64)


def test_to_pandas() -> None:
    pytest.importorskip("pandas")
    frame = plan(
        models.uneven, mesh_shape=(3, 2), parallelize=models.fsdp, inputs=models.inputs
    ).to_pandas()
    assert frame["rank"].tolist() == list(range(6))
    assert frame["dp"].tolist() == [0, 0, 1, 1, 2, 2]
    assert frame["tp"].tolist() == [0, 1] * 3
    assert (frame["peak_bytes"] > frame["parameters"]).all()


def test_meta_modules_and_other_passes() -> None:
    def on_meta() -> nn.Module:
        with torch.device("meta"):
            return models.Model()

    def planned(build: Any, mode: str) -> Plan:
        return plan(
            build, mesh_shape=4, parallelize=models.fsdp, inputs=models.inputs, mode=mode,
        )  # fmt: skip

    assert planned(on_meta, "forward").peak_bytes == planned(models.Model, "forward").peak_bytes
    passed = planned(models.Model, "inference")
    assert passed.peak_bytes < planned(models.Model, "forward").peak_bytes
    assert {row.phase for row in passed.traffic} == {"forward"}
    assert not passed.highest.gradient_bytes


@pytest.mark.parametrize("ranks", [3, [0, "a"], [True], [], [9], [-1]])
def test_ranks_that_do_not_exist(ranks: Any) -> None:
    with pytest.raises(errors.InputsError, match=r"^ranks=.*: give several, such as \[0, 3\]"):
        plan(lambda: nn.Linear(4, 4), mesh_shape=4, inputs=torch.ones(1, 4), ranks=ranks)


def test_ranks_of_numpy() -> None:
    found = plan(lambda: nn.Linear(4, 4), mesh_shape=4, inputs=torch.ones(1, 4), ranks=np.arange(2))
    assert [each.ranks for each in found.by_ranks] == [(0,), (1,)]
    for other in (True, 1.0, 3):
        with pytest.raises(errors.InputsError, match="is not a rank of the plan"):
            found.of_rank(other)


def test_a_program_that_materializes_is_refused() -> None:
    def shard(module: Any, mesh: Any) -> Any:
        return materialize_module(fully_shard(module, mesh=mesh))

    with pytest.raises(errors.InputsError, match="parallelize returned a module that has real"):
        plan(
            lambda: deferred_init(nn.Linear, 4, 4),
            mesh_shape=2,
            parallelize=shard,
            inputs=torch.ones(1, 4),
            device="cpu",
        )
