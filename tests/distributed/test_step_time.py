"""The time of a rank's step: the streams of FSDP2, and the nodes that a group spans."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.distributed import sharded_models as models
from torchfake import estimate, fake_mode
from torchfake.distributed import Links, Plan, plan, plan_target
from torchfake.distributed.layout import Layout
from torchfake.errors import InputsError


class Layers(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        linears = (nn.Linear(8192, 8192, bias=False) for _ in range(depth))
        self.layers = nn.ModuleList(linears)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Inverse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x)


def planned(batch: int, num_ranks: int = 8, **options: object) -> Plan:
    def parallelize(module: nn.Module, mesh: object) -> None:
        for layer in module.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)  # type: ignore[call-overload]
        fully_shard(module, mesh=mesh)  # type: ignore[call-overload]

    return plan(
        lambda: Layers().bfloat16(),
        mesh_shape=num_ranks,
        parallelize=parallelize,
        inputs=lambda: torch.empty(batch, 8192, dtype=torch.bfloat16),
        gpu="h100-80gb",
        **options,  # type: ignore[arg-type]
    )


def test_layers_hide_the_messages_of_the_next() -> None:
    large, small = planned(65536).schedule, planned(64).schedule
    assert large is not None
    assert small is not None
    first = 2 * 8192 * 8192 / (450e9 * 0.8)  # the first layer's parameters are waited for
    assert large.exposed_seconds == pytest.approx(first * 7 / 8 * 2, rel=0.2)  # the last gradient's
    assert small.exposed_seconds > 0.3 * small.seconds


def test_a_slower_network_takes_longer() -> None:
    fast = planned(64, 64)
    slow = planned(64, 64, links=Links(450e9, 12.5e9))
    few = planned(64, 64, links=Links(450e9, 50e9, gpus_per_node=1))
    assert fast.step_seconds is not None
    assert slow.step_seconds is not None
    assert few.step_seconds is not None
    assert slow.step_seconds > 3 * fast.step_seconds
    assert few.step_seconds > 5 * fast.step_seconds


def test_ranks_in_one_node() -> None:
    layout = Layout((4, 2, 8), ("pp", "dp", "tp"))
    assert layout.ranks_in_node("tp", 8, 8) == 8
    assert layout.ranks_in_node("dp", 2, 8) == 1
    assert layout.ranks_in_node("dp", 2, 16) == 2
    assert layout.ranks_in_node("dp x tp", 16, 8) == 8
    assert layout.ranks_in_node("pp x dp", 8, 32) == 4
    assert layout.ranks_in_node("part of tp", 4, 8) == 4


def test_a_mesh_of_one_is_an_estimate() -> None:
    with fake_mode():
        model, inputs = models.Model(63, 32, 66), models.inputs()
    alone = estimate(model, inputs, optimizer="adamw", gpu="h100-80gb")
    found = plan(
        lambda: models.Model(63, 32, 66),
        mesh_shape=1,
        inputs=models.inputs,
        optimizer="adamw",
        gpu="h100-80gb",
    )
    assert found.peak_bytes == alone.peak_bytes
    assert found.peak_reserved_bytes == alone.peak_reserved_bytes
    assert found.step_seconds == alone.step_seconds
    assert found.schedule is not None
    assert alone.schedule is not None
    assert found.schedule.seconds_by_kind == alone.schedule.seconds_by_kind


def test_a_plan_says_its_time() -> None:
    found = planned(65536)
    assert found.mfu is not None
    assert 0.4 < found.mfu < 0.6
    assert "step time" in str(found)
    said = json.loads(json.dumps(found.to_dict()))
    assert said["step_seconds"] == found.step_seconds == said["schedule"]["seconds"]
    on_cpu = plan(lambda: nn.Linear(2, 2), mesh_shape=2, inputs=torch.empty(1, 2), device="cpu")
    assert on_cpu.step_seconds is on_cpu.mfu is None


def test_what_the_cpu_computes_is_not_timed() -> None:
    target = "transformers:LlamaForCausalLM"
    sizes = ("hidden_size=256", "intermediate_size=512", "num_hidden_layers=2", "vocab_size=512")
    options = {"overrides": sizes, "mesh": "dp=2", "seq": 64, "gpu": "h100-80gb"}
    on_gpu = plan_target(target, **options)  # type: ignore[arg-type]
    found = plan_target(target, **options, offload=True)  # type: ignore[arg-type]
    assert on_gpu.step_seconds == on_gpu.plan.step_seconds_at_least
    assert found.step_seconds is found.mfu is found.tokens_per_second_per_gpu is None
    assert found.samples_per_second_of_all_gpus is None
    least = found.plan.step_seconds_at_least
    assert least is not None
    text = str(found)
    assert re.search(r"\nstep time +at least ", text)
    assert re.search(r"\nthroughput +at most [\d,]+ tokens/s on each GPU\n", text)
    assert re.search(r"\nnot timed +what reads or writes CPU memory: aten\.", text)
    said = found.to_dict()
    assert said["step_seconds"] is None
    assert said["step_seconds_at_least"] == least == said["plan"]["schedule"]["seconds"]
    assert said["plan"]["schedule"]["is_lower_bound"]
    assert {row["operator"] for row in said["plan"]["not_timed_on_cpu"]} >= {"aten.mul_"}


def test_operators_without_known_flops_leave_a_lower_bound() -> None:
    with fake_mode():
        x = torch.empty(512, 512)
    found = estimate(Inverse(), x, gpu="h100-80gb", mode="inference")
    assert found.schedule is not None
    assert found.schedule.is_lower_bound
    assert found.step_seconds is None
    planned = plan(Inverse, mesh_shape=1, inputs=x, gpu="h100-80gb", mode="inference")
    assert planned.step_seconds is planned.mfu is None
    assert re.search(r"\nstep time +at least ", str(planned))


def test_a_ring_has_the_model_flops_of_one_gpu() -> None:
    sizes = ("hidden_size=256", "num_hidden_layers=1", "vocab_size=64")
    target, options = "transformers:LlamaForCausalLM", {"seq": 256, "overrides": sizes}
    found = [
        plan_target(target, mesh=mesh, precision="bf16", gpu="h100-80gb", **options)  # type: ignore[arg-type]
        for mesh in ("dp=1", "cp=2", "cp=4")
    ]
    one, *rings = [each.plan.model_flops * each.plan.layout.num_ranks for each in found]
    assert rings == [one, one]


def test_a_plan_over_nodes_names_the_network_of_its_time() -> None:
    within, usual = planned(65536), planned(65536, 16)
    assert within.network_gbits is None
    assert "network" not in str(within)
    assert usual.to_dict()["network_gbits"] == 400
    assert ", with 400 Gb/s of network for each GPU)" in str(usual).splitlines()[0]
    assert re.search("  network +400 Gb/s for each GPU, between nodes of 8\n", str(usual))
    assert "models with such inputs" in str(usual)
    slow = planned(65536, 16, links=Links(450e9, 12.5e9 / 8, 8))
    assert slow.step_seconds > usual.step_seconds  # type: ignore[operator]
    assert "(error not known, with 12.5 Gb/s of network for each GPU)" in str(slow).splitlines()[0]
    assert "not known: training of models on such a network" in str(slow)


def test_a_network_in_gigabits() -> None:
    sizes = "hidden_size=512", "intermediate_size=1024", "num_hidden_layers=2", "vocab_size=1000"
    sizes = *sizes, "num_attention_heads=8", "num_key_value_heads=8"
    given = {"gpus": 16, "seq": 4096, "micro_batch": 16, "gpu": "h100-80gb", "overrides": sizes}
    usual, slow = (
        plan_target("transformers:LlamaForCausalLM", **given, network=n)  # type: ignore[arg-type]
        for n in (None, 1)
    )
    assert (usual.plan.network_gbits, slow.plan.network_gbits) == (400, 1)
    assert slow.step_seconds > usual.step_seconds  # type: ignore[operator]
    with pytest.raises(InputsError, match="network=0 is not a number of Gb/s above 0"):
        plan_target("transformers:LlamaForCausalLM", **given, network=0)  # type: ignore[arg-type]
