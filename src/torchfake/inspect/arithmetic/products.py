"""FLOPs of matrix products.

Input: a call of a product. Output: its FLOPs. Invariant: a multiply-add is two FLOPs; each element
of the result is a sum over the last dim of the first factor, unless a formula says otherwise.
"""

from __future__ import annotations

import math

from torchfake.inspect.arithmetic.call import Call

FIRST_FACTORS = {
    "aten::mv": "self",
    "aten::addmv": "mat",
    "aten::dot": "self",
    "aten::vdot": "self",
    "aten::linear": "input",
    "aten::_addmm_activation": "mat1",
    "aten::_int_mm": "self",
    "aten::_scaled_mm_v2": "self",
    "aten::_weight_int8pack_mm": "self",
    "aten::_weight_int4pack_mm": "self",
    "aten::_weight_int4pack_mm_for_cpu": "self",
    "aten::_weight_int4pack_mm_with_scales_and_zeros": "self",
    "aten::_dyn_quant_matmul_4bit": "inp",
    "aten::_mixed_dtypes_linear": "input",
}
"""Products that torch has no formula for, and the argument that is their first factor."""


def product_flops(call: Call) -> int:
    """The FLOPs of a product: for each element of the result, a multiply-add for each of the
    elements that are summed over.
    """
    name = FIRST_FACTORS[call.func._schema.name.removesuffix("_")]
    return 2 * int(math.prod(call.output.shape)) * call.shape(name)[-1]


def summed_product_flops(call: Call) -> int:
    """The FLOPs of ``addbmm``: the products of a batch of matrices, added up."""
    return 2 * math.prod(call.shape("batch1")) * call.shape("batch2")[-1]


def distance_product_flops(call: Call) -> int:
    """The FLOPs of ``_euclidean_dist``: a product of rows that have their norms appended."""
    return 2 * int(math.prod(call.output.shape)) * (call.shape("x1")[-1] + 2)


def list_product_flops(call: Call) -> int:
    """The FLOPs of ``_foreach_mm``, which multiplies pairs of matrices."""
    pairs = zip(call["self"], call["mat2"], strict=True)
    return sum(2 * a.shape[0] * a.shape[1] * b.shape[1] for a, b in pairs)


def grouped_product_flops(call: Call) -> int:
    """The FLOPs of a grouped matrix product, as ``_grouped_mm`` computes it for experts.

    Groups are along the dimension that is summed over, or along the rows; either way each row is
    multiplied with one matrix.
    """
    a, b = call.shape("self", "mat_a"), call.shape("mat2", "mat_b")
    groups = a[0] if len(a) == len(b) == 3 else 1
    return 2 * groups * math.prod(a[-2:]) * b[-1]


def linear_loss_flops(call: Call) -> int:
    """The FLOPs of ``linear_cross_entropy``, which computes gradients in its forward pass."""
    given = call.given()
    gradients = (f"compute_{name}_grad" for name in ("input", "linear_weight"))
    num_products = 1 + sum(bool(given.get(name)) for name in gradients)
    rows = math.prod(call.shape("input")[:-1])
    return 2 * rows * math.prod(call.shape("linear_weight")) * num_products


def trilinear_flops(call: Call) -> int:
    """The FLOPs of ``_trilinear``, which ``nn.Bilinear`` and its backward call: the product of the
    first two factors, summed over the dims that the third does not have, times the third.

    A product that sums over nothing is elementwise, and counts as zero.
    """
    summed = set(call["sumdim"])
    of_first = [dim for dim in call["expand3"] if dim in summed]
    of_second = summed - {*of_first}
    sizes = [_expanded(call.shape(f"i{i}"), call[f"expand{i}"]) for i in (1, 2, 3)]
    first = _broadcast(sizes[0], sizes[1])
    kept = [1 if dim in of_first else size for dim, size in enumerate(first)]
    second = _broadcast(kept, sizes[2])
    return 2 * (math.prod(first) * bool(of_first) + math.prod(second) * bool(of_second))


def _expanded(shape: tuple[int, ...], dims: list[int]) -> list[int]:
    sizes = [*shape]
    for dim in sorted(dims):
        sizes.insert(dim, 1)
    return sizes


def _broadcast(one: list[int], other: list[int]) -> list[int]:
    return [b if a == 1 else a for a, b in zip(one, other, strict=True)]
