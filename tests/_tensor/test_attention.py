"""Attention on the CPU runs the kernel that eager runs: shapes x masks x options, bits compared."""

from __future__ import annotations

import itertools

import pytest
import torch

from torchfake import deferred_mode, materialize_tensor

Shapes = tuple[tuple[int, ...], ...]
SHAPES: dict[str, Shapes] = {
    "four dims": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
    "three dims": ((3, 5, 8), (3, 7, 8), (3, 7, 8)),
    "two dims": ((5, 8), (7, 8), (7, 8)),
    "mixed dims": ((2, 3, 5, 8), (3, 7, 8), (3, 7, 8)),
    "other values": ((3, 5, 8), (3, 7, 8), (3, 7, 4)),
    "grouped": ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)),
    "one head": ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    "no queries": ((2, 3, 0, 8), (2, 3, 7, 8), (2, 3, 7, 8)),
}
MASKS = {
    "none": lambda q, k: None,
    "numbers": lambda q, k: torch.randn(q.shape[-2], k.shape[-2]),
    "bools": lambda q, k: torch.rand(q.shape[-2], k.shape[-2]) > 0.3,
    "row": lambda q, k: torch.randn(k.shape[-2]),
    "batch": lambda q, k: torch.randn(2, 3, 1, k.shape[-2]),
    "double": lambda q, k: torch.randn(q.shape[-2], k.shape[-2], dtype=torch.float64),
    "differentiated": lambda q, k: torch.randn(q.shape[-2], k.shape[-2], requires_grad=True),
}
OPTIONS = [
    dict(zip(("is_causal", "enable_gqa", "dropout_p"), values, strict=True))
    for values in itertools.product((False, True), (False, True), (0.0, 0.5))
]


def attend(shapes: Shapes, mask, options):
    """The result and the gradients."""
    torch.manual_seed(0)
    inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
    made = mask(*inputs[:2])
    attention = torch.nn.functional.scaled_dot_product_attention
    result = attention(*inputs, attn_mask=made, **options)
    return [result, *torch.autograd.grad(result.square().sum(), inputs)]


def outcome(*call):
    try:
        return attend(*call)
    except (RuntimeError, IndexError) as error:
        return type(error)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_equals_eager(shapes) -> None:
    for mask, options in itertools.product(MASKS, OPTIONS):
        expected = outcome(shapes, MASKS[mask], options)
        with deferred_mode():
            got = outcome(shapes, MASKS[mask], options)
        if isinstance(expected, type):
            assert got is expected, (mask, options)
            continue
        assert not isinstance(got, type), (mask, options, got)
        assert [t.stride() for t in got] == [t.stride() for t in expected], (mask, options)
        for one, other in zip(got, expected, strict=True):
            assert materialize_tensor(one.detach()).equal(other.detach()), (mask, options)


def test_in_a_transform() -> None:
    """Inside of torch.func too, where tensors tell the device of the wrapper."""
    shapes = SHAPES["four dims"]

    def gradients():
        torch.manual_seed(0)
        inputs = tuple(torch.randn(shape) for shape in shapes)
        attention = torch.nn.functional.scaled_dot_product_attention
        result, pull = torch.func.vjp(attention, *inputs)
        return [result, *pull(result)]

    expected = gradients()
    with deferred_mode():
        got = gradients()
    for one, other in zip(got, expected, strict=True):
        assert one.stride() == other.stride()
        assert materialize_tensor(one.detach()).equal(other.detach())
