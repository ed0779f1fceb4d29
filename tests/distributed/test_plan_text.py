"""How a plan is shown: its tables."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.distributed.fsdp import fully_shard

from torchfake.distributed import plan


def test_ranks_that_look_equal_share_a_row() -> None:
    def shard(module, mesh):
        fully_shard(module, mesh=mesh)

    found = plan(
        lambda: torch.nn.Linear(64, 64),
        mesh_shape=4,
        mesh_dim_names=("dp",),
        parallelize=shard,
        inputs=lambda: torch.empty(1, 64),
    )
    (kind,) = found.by_ranks
    three, other = replace(kind, ranks=(0, 1, 2)), replace(kind, ranks=(3,))
    for by_ranks, shown in (
        ((three, other), ["all 4"]),  # they differ by less than is shown
        ((three, replace(other, traffic=())), ["0-2 (dp 0-2)", "3 (dp 3)"]),
    ):
        table = str(replace(found, by_ranks=by_ranks)).partition("\nranks ")[2]
        rows = table.partition("\n\n")[0].splitlines()[1:]
        assert [row.partition("  ")[0] for row in rows] == shown
