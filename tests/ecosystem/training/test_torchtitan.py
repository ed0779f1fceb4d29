"""torchtitan's own parallelize functions, unchanged, in a plan."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchfake.distributed import Plan, plan

pytestmark = pytest.mark.filterwarnings("ignore")

LAYOUTS = [
    ("llama3", {}),
    ("llama3", {"tensor_parallel_degree": 2}),
    ("llama3", {"data_parallel_replicate_degree": 2}),
    ("deepseek_v3", {"expert_parallel_degree": 2}),
    ("deepseek_v3", {"tensor_parallel_degree": 2, "expert_parallel_degree": 4}),
]


def planned(family: str, degrees: dict[str, int], monkeypatch: Any) -> Plan:
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims, parallel_dims, utils

    monkeypatch.setattr(parallel_dims, "device_type", "cuda")
    monkeypatch.setattr(utils, "_spmd_backend", "partial_dtensor")
    spec = importlib.import_module(f"torchtitan.models.{family}").model_registry("debugmodel")
    parallelism = ParallelismConfig(spmd_backend="partial_dtensor", **degrees)
    spec.model.update_from_config(config=SimpleNamespace(parallelism=parallelism))
    models = []

    def parallelize(model: Any, mesh: Any) -> Any:
        dims = ParallelDims.from_config(parallelism, 4)
        dims.build_mesh()
        models[:] = [
            spec.parallelize_fn(
                model,
                parallel_dims=dims,
                training=TrainingConfig(),
                parallelism=parallelism,
                compile_config=CompileConfig(enable=False),
                ac_config=None,
                dump_folder="",
            )
        ]
        return models[0]

    def inputs() -> dict[str, Any]:
        positions = torch.arange(256).repeat(2, 1)
        masks = models[0].get_attention_masks(positions)
        tokens = torch.zeros(2, 256, dtype=torch.int64)
        return {"tokens": tokens, "positions": positions, "attention_masks": masks}

    return plan(
        spec.model.build,
        mesh_shape=4,
        parallelize=parallelize,
        inputs=inputs,
        optimizer="adamw",
        gpu="h100-80gb",
        routing="balanced",
    )


@pytest.mark.parametrize(("family", "degrees"), LAYOUTS)
def test_parallelize_functions_run(family: str, degrees: dict[str, int], monkeypatch: Any) -> None:
    found = planned(family, degrees, monkeypatch)
    assert found.fits
    sent = {row.collective for row in found.traffic}
    assert {"all_gather", "reduce_scatter"} <= sent
    assert ("all_to_all" in sent) == ("expert_parallel_degree" in degrees)
