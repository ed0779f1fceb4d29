"""Kinds of operators: those whose time is that of the bytes that they move, and the others.

Input: an operator. Output: its kind; None if it may compute more than its bytes tell. Invariant: an
operator is bound by memory if torch tags it as pointwise or as a reduction, if its schema says that
it only fills memory, or if its name says what it does to each element. An operator that nothing is
known of is not.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

from torchfake.observe import traits_of

MATMUL, CONVOLUTION, DEPTHWISE = "matrix products", "convolutions", "depthwise convolutions"
RECURRENT, CUSTOM = "recurrent layers", "operators with a formula of their own"
ELEMENTWISE, REDUCTION, COPY, LOOKUP = "elementwise", "reductions", "copies", "lookups"
UNCOUNTED = "operators whose FLOPs are not known"
COMMUNICATION = "communication"
ATTENTION = {"flash": "flash attention", "cudnn": "cuDNN attention",
             "efficient": "memory-efficient attention"}  # fmt: skip
BACKWARD = " backward"


def is_attention(kind: str) -> bool:
    """Whether a kind is that of a kernel of attention, forward or backward."""
    return kind.removesuffix(BACKWARD) in ATTENTION.values()


_REDUCTIONS = (
    "norm", "softmax", "sum", "mean", "var", "std", "max", "min", "prod", "all", "any", "nll_loss",
    "cross_entropy", "logsumexp", "argmax", "argmin", "cumsum", "topk", "sort",
)  # fmt: skip
_COPIES = ("copy", "cat", "clone", "stack", "pad", "split_with_sizes", "slice_backward", "fill")
_LOOKUPS = ("embedding", "index", "gather", "scatter", "select_backward", "masked")

_TAGS = [torch.Tag.pointwise]
_TAGS += [
    getattr(torch.Tag, name) for name in ("reduction", "view_copy") if hasattr(torch.Tag, name)
]

_WORDS = frozenset(
    """
    bernoulli binomial cauchy dirichlet dropout exponential gamma geometric multinomial normal
    poisson rand randint randn random randperm uniform
    complex cross divide entropy glu hardswish loss noise polar prelu rescale rrelu sigmoid thnn
    adagrad adam adamw amp norm powsum renorm sgd softmax true
    bincount bucketize count cummax cummin cumprod cumsum dist fft hash histc histogram
    histogramdd isin kthvalue logcumsumexp median mode nanmedian reduce searchsorted sort topk trace
    unique unique2
    grid pool unpool upsample
    cat clone copy diag diagonal embedding fill flatten flip gather index lift masked narrow nonzero
    pack pad padded put repeat roll rot90 scatter select shuffle slice split stack take tril triu
    unfold unpack unsafe unshuffle
    addr bag bin col2im dequantize im2col int4pack linspace logspace obs quantize resize set zero
    """.split()  # noqa: SIM905
)
"""Words in the names of torch's operators that do a bounded number of operations for each element
that they read or write, those that draw, normalize, search, resample and move among them."""


def kind_of(func: Any) -> str | None:
    """The kind of an operator without a formula; None if its FLOPs are not known."""
    if not _is_bound_by_memory(func):
        return None
    namespace, _, name = traits_of(func).packet.partition("::")
    if namespace == "fsdp":
        return COPY
    if any(part in name for part in _LOOKUPS):
        return LOOKUP
    if any(part in name for part in _COPIES):
        return COPY
    return REDUCTION if any(part in name for part in _REDUCTIONS) else ELEMENTWISE


@cache
def _is_bound_by_memory(func: Any) -> bool:
    namespace, _, name = traits_of(func).packet.partition("::")
    if _is_tagged(func._overloadpacket) or namespace == "fsdp":
        return True
    if namespace != "aten":
        return False
    base = _forward_name(name)
    if _is_tagged(getattr(torch.ops.aten, base, None)) or _only_fills(func, name):
        return True
    words = {re.sub(r"[123]d$", "", word) for word in base.split("_")}
    return "mm" not in words and not words.isdisjoint(_WORDS)


def _forward_name(name: str) -> str:
    """The name of the operator whose backward pass, list or kernel another one is."""
    return re.sub(r"_(backward|forward)(_|$).*", "", name.replace("_foreach_", "_")).strip("_")


def _is_tagged(packet: Any) -> bool:
    """Whether torch tags an overload as pointwise, or as a reduction, or as a copy of a view."""
    if packet is None:
        return False
    overloads = (getattr(packet, name) for name in packet.overloads())
    return any(tag in overload.tags for overload in overloads for tag in _TAGS)


def _only_fills(func: Any, name: str) -> bool:
    """Whether an operator takes no tensor, or only the metadata of one."""
    takes = any("Tensor" in str(each.type) for each in func._schema.arguments if not each.is_out)
    return not takes or name.endswith("_like") or name.startswith("new_")
