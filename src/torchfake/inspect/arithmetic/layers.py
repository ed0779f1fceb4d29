"""FLOPs of operators that are whole layers: convolutions, recurrent layers, encoder layers.

Input: a call of such an operator. Output: its FLOPs. Invariant: a multiply-add is two FLOPs;
padding is multiplied like other elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from torchfake.inspect.arithmetic.attention import is_backward
from torchfake.inspect.arithmetic.call import Call, Shape

CONVOLUTIONS = (
    "aten::conv_depthwise3d",
    "aten::_conv_depthwise2d",
    "aten::cudnn_convolution_add_relu",
    "aten::cudnn_convolution_relu",
    "aten::cudnn_convolution_transpose",
    "aten::miopen_convolution",
    "aten::miopen_convolution_add_relu",
    "aten::miopen_convolution_relu",
    "aten::miopen_convolution_transpose",
    "aten::miopen_depthwise_convolution",
    "aten::mkldnn_convolution",
    "aten::slow_conv3d",
    "aten::slow_conv3d_forward",
    "aten::slow_conv_dilated2d",
    "aten::slow_conv_dilated3d",
    "aten::slow_conv_transpose2d",
    "aten::slow_conv_transpose3d",
)
"""Convolutions that torch has no formula for."""


def convolution_flops(call: Call) -> int:
    """The FLOPs of a convolution: each position of the output is the product of the weights with
    what is below them; of a transposed one, each position of the input.
    """
    return _of_positions(call, call.output.shape)


def convolution_backward_flops(call: Call) -> int:
    """The FLOPs of a convolution's backward: as many as forward for each gradient, of the input
    and of the weights, whatever the groups. torch's formula counts the gradient of grouped weights
    as if each input channel met each output channel.
    """
    mask = call["output_mask"]
    return _of_positions(call, call.shape("grad_output")) * (bool(mask[0]) + bool(mask[1]))


def _of_positions(call: Call, output: Shape) -> int:
    is_transposed = "transpose" in call.func._schema.name
    if call.has("transposed"):
        is_transposed = call["transposed"]
    given, weight = call.shape("input", "self"), call.shape("weight")
    positions = (given if is_transposed else output)[-len(weight[2:]) :]
    batch = given[0] if len(given) == len(weight) else 1
    return 2 * batch * math.prod(positions) * math.prod(weight)


def groups_of(call: Call) -> int:
    """Into how many groups a convolution divides its channels."""
    groups: int = call["groups"] if call.has("groups") else 1
    return groups


def is_depthwise_convolution(call: Call) -> bool:
    """Whether each group has a single channel of the input: no matrix product is computed then."""
    is_by_name = "depthwise" in call.func._schema.name
    return is_by_name or (groups_of(call) > 1 and call.shape("weight")[1] == 1)


def has_short_filters(call: Call) -> bool:
    """Whether Winograd's algorithm may compute a convolution: 3 x 3, a position at a time."""
    options = (call[name] for name in ("stride", "dilation") if call.has(name))
    in_steps_of_one = all(step == 1 for each in options for step in each)
    return call.shape("weight")[2:] == (3, 3) and in_steps_of_one and groups_of(call) == 1


def is_channels_first(call: Call) -> bool:
    """Whether the channels of images are not next to each other in memory."""
    images = call.one_of("input", "self")
    if images.dim() != 4:
        return False
    return not images.is_contiguous(memory_format=torch.channels_last)


RECURRENT = tuple(
    f"aten::{name}{way}"
    for name in ("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn_layer")
    for way in ("", "_backward")
)


def recurrent_flops(call: Call) -> int:
    """The FLOPs of recurrent layers: each weight matrix multiplies each step of each sequence, of
    packed sequences too. A backward pass does as much for the inputs, whose gradients cuDNN always
    computes, and for the weights if these need gradients.
    """
    steps = math.prod(call.shape("input")[:-1])
    once = 2 * steps * sum(rows * columns for rows, columns in _matrices(call))
    if not is_backward(call.func):
        return once
    has_weights = not call.has("output_mask") or bool(call["output_mask"][3])
    return once * (1 + has_weights)


def recurrent_product(call: Call) -> tuple[int, int, int]:
    """Number, rows and columns of the product of one step: steps follow each other."""
    state = call.one_of("hx", "hx_")
    return 1, int(state.shape[-2]), max((rows for rows, _ in _matrices(call)), default=1)


def _matrices(call: Call) -> Iterator[Shape]:
    for name, value in call.given().items():
        if name.startswith("weight") and name != "weight_buf":  # which holds the others
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if hasattr(tensor, "shape") and len(tensor.shape) == 2:
                    yield tuple(tensor.shape)


def attention_layer_flops(call: Call) -> int:
    """The FLOPs of the fast path of ``nn.MultiheadAttention``: projections and attention."""
    query, key = call.shape("query"), call.shape("key")
    return _attention_layer(query, key, call.shape("qkv_weight"), call.shape("proj_weight"))


def encoder_layer_flops(call: Call) -> int:
    """The FLOPs of the fast path of ``nn.TransformerEncoderLayer``."""
    given = call.shape("src")
    attention = _attention_layer(given, given, call.shape("qkv_weight"), call.shape("proj_weight"))
    wide = math.prod(call.shape("ffn_weight_1")) + math.prod(call.shape("ffn_weight_2"))
    return attention + 2 * math.prod(given[:-1]) * wide


def _attention_layer(query: Shape, key: Shape, qkv_weight: Shape, proj_weight: Shape) -> int:
    """Both are (batch, length, width); a third of the rows of `qkv_weight` projects queries."""
    queries, keys = math.prod(query[:-1]), math.prod(key[:-1])
    projected = (queries + 2 * keys) * math.prod(qkv_weight) // 3
    width = qkv_weight[0] // 3
    scores = math.prod(query[:-2]) * query[-2] * key[-2] * width  # of all heads together
    return 2 * (projected + 2 * scores + queries * math.prod(proj_weight))


def layer_product(call: Call) -> tuple[int, int, int]:
    """Number, rows and columns of the first product of an encoder layer, or of its attention."""
    given: Any = call.shape("query", "src")
    return 1, math.prod(given[:-1]), call.shape("qkv_weight")[0]
