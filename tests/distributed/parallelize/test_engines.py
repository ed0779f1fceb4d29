"""Engines by name: DDP and FSDP1 in place of FSDP2. What they hold is in test_counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchfake import fake_mode
from torchfake.distributed import Strategy, plan
from torchfake.errors import InputsError

pytestmark = pytest.mark.filterwarnings("ignore")  # FSDP1's, of itself


def layers() -> nn.Module:
    return nn.ModuleDict({"stack": nn.ModuleList(nn.Linear(8, 8) for _ in range(3))})


def code(*args: Any, **options: Any) -> str:
    with fake_mode():
        return Strategy(*args, **options).code(layers())


def test_ddp_is_printed_with_the_part_of_the_optimizer() -> None:
    found = code({"dp": 8}, engine="ddp", zero=1)
    assert 'model = DistributedDataParallel(model, device_mesh=mesh["dp"])' in found
    assert "# forward passes run in torch.autocast(" in found
    assert 'torch.optim.AdamW, process_group=mesh["dp"].get_group()' in found
    assert "optimizer" not in code({"ddp": 8}, engine="ddp")
    assert "replicate(" in code({"ddp": 8})


@pytest.mark.parametrize(
    ("mesh", "zero", "named"),
    [
        ({"dp": 4}, None, "FULL_SHARD"),
        ({"dp": 4}, 2, "SHARD_GRAD_OP"),
        ({"replicate": 2, "dp": 2}, 3, "HYBRID_SHARD"),
        ({"replicate": 2, "dp": 2}, 2, "_HYBRID_SHARD_ZERO2"),
    ],
)
def test_fsdp1_is_printed_with_its_strategy(mesh: Any, zero: int | None, named: str) -> None:
    found = code(mesh, zero=zero, offload=True, engine="fsdp1")
    compile(found, "printed", "exec")
    assert f"sharding_strategy=ShardingStrategy.{named}," in found
    assert "cpu_offload=CPUOffload(offload_params=True)" in found
    assert "kinds = {type(block) for block in model.stack}" in found


def test_ranks_with_other_parts_of_the_optimizer_are_run() -> None:
    strategy = Strategy({"dp": 4}, engine="ddp", zero=1, precision="fp32")
    found = plan(
        lambda: nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 8, bias=False)),
        **strategy.plan_options,
        inputs=lambda: torch.empty(4, 64),
        optimizer=strategy.optimizer("sgd"),
        device="cpu",
    )
    assert [ranks.ranks for ranks in found.by_ranks] == [(0,), (1,), (2, 3)]
    assert [row.num_calls for row in found.traffic if row.phase == "optimizer"] == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"engine": "ddp", "zero": 3},
            "zero=3 is not supported by ddp: give 0 or 1, or engine='fsdp2'",
        ),
        ({"zero": 1}, "zero=1 is not supported by fsdp2: give 3 or 2, or engine='ddp'"),
        ({"zero": True}, "zero=True is not supported by fsdp2: give 3 or 2$"),
        ({"engine": "dpp"}, "engine is 'dpp', which is not supported: give fsdp2, "),
        ({"precision": "fp16"}, "is 'fp16', which is not supported: give mixed, bf16 or fp32$"),
        ({"engine": "ddp", "mesh": {"dp": 4, "tp": 2}}, "the axis dp only, and the mesh has 'tp'"),
        ({"engine": "ddp", "mesh": {"replicate": 2, "dp": 2}}, "give dp=4 alone"),
        ({"engine": "ddp", "offload": True}, "offload needs fsdp2 or fsdp1"),
        ({"engine": "fsdp1", "mesh": {"dp": 1}}, "for several ranks"),
        ({"engine": "fsdp1", "mesh": {"replicate": 4}}, "fsdp1 shards"),
    ],
)
def test_what_an_engine_does_not_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputsError, match=message):
        Strategy(**{"mesh": {"dp": 4}, **options})
    with pytest.raises(InputsError, match="'adamx' is not an optimizer"):
        Strategy({"dp": 4}).optimizer("adamx")
