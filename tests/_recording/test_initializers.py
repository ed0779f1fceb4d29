"""Initializers that are recorded as one operation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchfake import (
    deferred_init,
    deferred_mode,
    errors,
    graph,
    materialize_tensor,
)


@pytest.mark.parametrize("name", ["trunc_normal_", "orthogonal_", "sparse_"])
def test_an_initializer_is_one_operation(name: str) -> None:
    arguments = {"sparsity": 0.5} if name == "sparse_" else {}
    with deferred_mode():
        weight = torch.empty(4, 4)
        getattr(nn.init, name)(weight, **arguments)
    (line,) = graph(weight)
    assert line.op.startswith("torch.nn.init.")
    assert line.op.endswith(name)


def test_arguments_that_are_tensors() -> None:
    gain, std = torch.tensor(0.5), torch.tensor(0.25)

    def build() -> list[torch.Tensor]:
        drawn = torch.rand(())
        weights = [torch.empty(4, 4) for _ in range(3)]
        nn.init.orthogonal_(weights[0], gain=gain)
        nn.init.orthogonal_(weights[1], gain=drawn)
        nn.init.trunc_normal_(weights[2], std=std)
        return weights

    torch.manual_seed(0)
    eager = build()
    torch.manual_seed(0)
    made = deferred_init(build)
    gain.fill_(1)
    with pytest.raises(errors.ReplayError, match="orthogonal_ at"):
        materialize_tensor(made[0])
    for one, other in zip(eager[1:], made[1:], strict=True):
        assert torch.equal(materialize_tensor(other), one)
