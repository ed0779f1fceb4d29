"""Arguments of calls by name."""

from __future__ import annotations

import torch

from torchfake.inspect.arithmetic.call import Call, functional_packet

aten = torch.ops.aten


def test_arguments_by_name() -> None:
    x, y = torch.empty(2, 3), torch.empty(3)
    call = Call(aten.add.Tensor, (x,), {"other": y}, (x, y))
    assert call["self"] is x
    assert call["other"] is y
    assert call["alpha"] == 1
    assert call.shape("input", "self") == (2, 3)
    assert call.has("alpha")
    assert not call.has("beta")
    assert [*call.given()] == ["self", "other", "alpha"]
    assert call.output is x


def test_operators_in_place_have_the_functional_ones_packet() -> None:
    assert functional_packet(aten.addmm_.default) is aten.addmm
    assert functional_packet(aten.addmm.out) is aten.addmm
    assert functional_packet(aten.random_.default) is aten.random
    assert functional_packet(aten.resize_.default) is aten.resize
    flex = torch.ops.higher_order.flex_attention
    assert functional_packet(flex) is flex
