"""Strategies: what is found in a model, and that the printed code is what is planned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' on import; FSDP2's, of views

from tests.distributed.parallelize import laid_out_models as models  # noqa: E402
from torchfake import fake_mode  # noqa: E402
from torchfake.distributed import Plan, Strategy, plan  # noqa: E402
from torchfake.distributed.parallelize import tensor_parallel as rules_of  # noqa: E402
from torchfake.distributed.parallelize.blocks import repeated_blocks  # noqa: E402
from torchfake.distributed.target_plans.target_plan import _of_all_micro_batches  # noqa: E402
from torchfake.errors import InputsError  # noqa: E402


def planned(strategy: Strategy, parallelize: Any = None, **options: Any) -> Plan:
    return plan(
        models.llama,
        mesh_shape=strategy.mesh_shape,
        mesh_dim_names=strategy.mesh_dim_names,
        parallelize=parallelize or strategy,
        inputs=models.texts,
        optimizer="sgd",
        **options,
    )


def held(found: Plan) -> Any:
    return [(ranks.most_bytes, ranks.peak_bytes, ranks.traffic) for ranks in found.by_ranks]


def test_the_printed_code_is_what_is_planned() -> None:
    strategy = Strategy(models.BOTH, "selective")
    with fake_mode():
        code = strategy.code(models.llama())
    names: dict[str, Any] = {}
    exec(code.partition("\n\n\nmesh = ")[0], names)
    assert held(planned(strategy)) == held(planned(strategy, names["parallelize"]))


def test_rules_that_torch_follows_are_as_transformers_follows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = Strategy(models.BOTH, "full")
    ours = planned(strategy)
    monkeypatch.setattr(rules_of, "TORCH_STYLES", {})
    with fake_mode():
        assert "apply_tensor_parallelism" in strategy.code(models.llama())
    assert held(ours) == held(planned(strategy))


def test_two_micro_batches_stand_for_four() -> None:
    strategy = Strategy(models.FSDP, precision="fp32")
    two, four = (planned(strategy, accumulate=number) for number in (2, 4))
    assert held(_of_all_micro_batches(two, 2, 4)) == held(four)


def test_blocks() -> None:
    def paths(build: Any) -> dict[str, int]:
        with fake_mode():
            return {group.path: len(group.keys) for group in repeated_blocks(build())}

    assert paths(models.t5) == {"encoder.block": 2, "decoder.block": 2}
    assert paths(models.qwen3_moe) == {"model.layers": 3}
    assert paths(models.Vision) == {"stages.0.blocks": 2, "stages.1.blocks": 3}
    mixed = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4))
    (group,) = repeated_blocks(mixed)
    assert (group.names, group.is_whole) == (["0", "2"], False)
    assert repeated_blocks(nn.Linear(4, 4)) == []


def test_some_members_of_a_list() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8))

    strategy = Strategy({"dp": 2}, "full", "fp32")
    with fake_mode():
        code = strategy.code(build())
    assert "for i in (0, 2):\n        model[i] = checkpoint_wrapper(model[i])" in code
    found = plan(build, mesh_shape=2, parallelize=strategy, inputs=torch.empty(2, 8), device="cpu")
    assert [row.num_calls for row in found.traffic if row.phase == "forward"] == [3]


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (models.gpt2, {}, "GPT2LMHeadModel ships no tensor-parallel plan: leave tp out"),
        (models.Model, {"layers.*.upp": "colwise"}, "names 'layers.*.upp', and Model has no such"),
        (models.Model, {"layers.*.up": "colwse"}, "colwse"),
    ],
)
def test_what_cannot_be_split(build: Any, options: dict[str, str], message: str) -> None:
    strategy = Strategy(models.BOTH, tensor_plan=options or None)
    with fake_mode(), pytest.raises(InputsError) as raised:
        strategy.code(build())
    assert message in str(raised.value)


def test_no_repeated_blocks_to_checkpoint() -> None:
    with pytest.raises(InputsError, match="Linear has no repeated blocks to checkpoint"):
        Strategy({"dp": 2}, "full").code(nn.Linear(2, 2))


def test_what_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchfake.distributed.parallelize import data_parallel

    monkeypatch.setattr(data_parallel, "_REPLICATE", "torch.distributed.not_there")
    with pytest.raises(InputsError, match=r"has no torch.distributed.not_there, and Distributed"):
        Strategy({"ddp": 2}).code(nn.Linear(2, 2))
