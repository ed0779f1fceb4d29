"""The tensors of a module that another rank may send values for, by the same names on all ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchfake import deferred_init
from torchfake._sharding.one_source import BATCH_BYTES, Sent, batches
from torchfake._sharding.sent_targets import targets_of
from torchfake.errors import MaterializeError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.tied = self.first
        self.tables = {"x": [torch.ones(2, dtype=torch.int64)], "other": 3}
        self.register_buffer("count", torch.zeros((), dtype=torch.int32))


def test_names_and_descriptions_do_not_depend_on_what_is_deferred() -> None:
    modules = Net(), deferred_init(Net)
    described = []
    for module in modules:
        named = [*module.named_parameters(), *module.named_buffers()]
        targets = targets_of(named, module, None)
        described.append({n: t.described._replace(is_deferred=False) for n, t in targets.items()})
    assert described[0] == described[1]
    assert {name: d.signature for name, d in described[0].items()} == {
        "first.weight": "float32[3, 2]",
        "first.bias": "float32[3]",
        "count": "int32[]",
        "tables['x'][0]": "int64[2]",
    }
    assert described[0]["first.weight"].names == ("first.weight", "tied.weight")
    assert described[0]["tables['x'][0]"].is_attribute


def test_a_dtype_counts_for_what_is_deferred() -> None:
    layer = deferred_init(nn.Linear, 2, 3)
    targets = targets_of([*layer.named_parameters()], layer, torch.bfloat16)
    assert targets["weight"].described.signature == "bfloat16[3, 2]"
    assert targets["weight"].described.num_bytes == 12


def test_a_flat_parameter_is_refused() -> None:
    """Its part on another rank has the same size, and other values."""
    layer = nn.Linear(2, 3)
    layer.weight._is_flat_param = True  # type: ignore[attr-defined]
    with pytest.raises(MaterializeError, match="weight is a flat parameter of FSDP1"):
        targets_of([*layer.named_parameters()], layer, None)


def test_batches() -> None:
    half = BATCH_BYTES // 2
    sent = [Sent(str(n), size, True, False) for n, size in enumerate((half, half, 1, 3 * half, 2))]
    assert [[each.name for each in batch] for batch in batches(sent)] == [
        ["0", "1"],
        ["2"],
        ["3"],
        ["4"],
    ]
    assert list(batches([])) == []
