"""Traits of operators: how an operator treats its arguments, read from its schema once.

Input: an ``OpOverload``. Output: its :class:`OpTraits`. Invariant: traits are facts about the
operator, never about one call of it.

The tables below hold facts that schemas lack, with their reasons. A new exception belongs here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from torchfake._torch import cpp_metadata, kernels
from torchfake._torch.dispatch_keys import counts_writes_in_python

aten = torch.ops.aten


class OpTraits(NamedTuple):
    """How an operator treats its arguments."""

    name: str  # "aten.add.Tensor"
    packet: str  # "aten::add"
    mutated_positions: tuple[int, ...]  # of the positional arguments that it mutates
    mutated_names: tuple[str, ...]  # of all arguments that it mutates, ``out=`` among them
    is_random: bool  # draws from a generator
    returns_uninitialized: bool  # its result is uninitialized memory
    is_empty_factory: bool  # returns uninitialized memory and takes no tensor
    is_view: bool  # its result is a view of its first argument
    keeps_inference: bool  # its result is an inference tensor if and only if its argument is
    refuses_numbers_at: range  # which tensors must not be CPU tensors of no dims among CUDA ones
    mixes_devices: bool  # its arguments may be on several devices
    is_data_dependent: bool  # tagged: its result, or the shape of its result, depends on values
    mutates_if_position: int | None  # position of the flag that must be set for it to mutate
    is_foreach: bool  # result i is computed from element i of the first list
    kernel_counts_writes: bool  # its kernel increments the versions of what it writes, not autograd
    is_metadata_only: bool  # reads and changes metadata of tensors and no bytes: a view
    reads_values: bool  # its outcome may depend on the values of its arguments
    returns_tensors: bool  # there are tensors among its results
    overwrites_first: bool  # writes all of its first argument, without reading it
    is_collective: bool  # exchanges values between ranks
    product_kind: str | None  # matmul, conv or rnn: its bits depend on torch.backends' settings
    checks_parameters: bool  # draws, and raises for some parameter tensors (a negative deviation)
    is_recorded_plainly: bool  # can be recorded from a recipe if all tensors it reads are deferred


_MIXES_DEVICES = frozenset(
    {"aten::copy_", "aten::copy", "aten::_to_copy", "aten::to",  # copy between devices
     "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",  # CPU indices
     "aten::_index_put_impl_", "aten::_unsafe_index_put",
     # copy the source into a copy of the first argument
     "aten::slice_scatter", "aten::select_scatter", "aten::diagonal_scatter",
     "aten::as_strided_scatter", "aten::resize_as_",  # takes only the sizes of the other
     "aten::fill", "aten::fill_",  # read the number, wherever it is
     "aten::set_",  # takes the storage of another tensor, on any device
     "aten::_pack_padded_sequence", "aten::_ctc_loss", "aten::_cudnn_ctc_loss",  # lengths
     "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_",
     "aten::tensor_split"}
)  # fmt: skip
"""Operators whose kernels accept arguments on several devices (fused ones a learning rate)."""

_REFUSING = frozenset(
    {"_batch_norm_with_update_functional", "_chunk_cat", "_fused_rms_norm", "_grouped_mm",
     "_native_batch_norm_legit_functional", "addcdiv", "binary_cross_entropy", "block_diag",
     "clamp", "clamp_max", "clamp_min", "complex", "convolution_backward", "embedding", "equal",
     "gcd", "gelu_backward", "igamma", "igammac", "lcm", "logaddexp", "logaddexp2",
     "logit_backward", "masked_scatter", "mse_loss", "native_dropout_backward", "nextafter",
     "normal", "polar", "put", "sigmoid_backward", "silu_backward", "smooth_l1_loss", "stack",
     "tanh_backward", "threshold_backward", "_scaled_addmm", "_scaled_grouped_mm_v2"}
)  # fmt: skip
"""Pointwise and composite operators that refuse CPU tensors of no dims all the same."""

_TAKING = frozenset(
    {"__irshift_", "_cudnn_rnn", "_efficient_attention_backward", "_flash_attention_backward",
     "_scaled_dot_product_efficient_attention_backward", "_validate_compressed_sparse_indices",
     "_scaled_dot_product_flash_attention_backward", "_use_cudnn_ctc_loss", "bernoulli", "binomial",
     "floor_divide", "is_set_to", "miopen_ctc_loss", "_use_miopen_ctc_loss", "_nested_from_padded",
     "_nested_view_from_buffer", "rsub", "where"}
)  # fmt: skip
"""Other operators with ``device_check: NoCheck`` in native_functions.yaml."""

_REFUSING_AT = {
    **dict.fromkeys(("addcmul", "lerp", "masked_fill", "index_fill", "_index_fill"), range(2)),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "soft_margin_loss"), range(1)),
    "binary_cross_entropy_with_logits": range(1, 2),
    **dict.fromkeys(("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"), range(1, 2)),
}
"""Operators whose kernels refuse such numbers in place of some of their tensors."""

_DOES_TO_EACH = {"_foreach_maximum": "clamp_min", "_foreach_minimum": "clamp_max"}
"""What ``_foreach_`` operators do to each element where their names do not say so."""

_RETURNS_UNINITIALIZED = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
     "aten::new_empty_strided", "aten::empty_permuted", "aten::empty_quantized"}
)  # fmt: skip

_OVERWRITES_FIRST = frozenset(
    {"aten::fill_", "aten::zero_", "aten::copy_", "aten::random_", "aten::uniform_",
     "aten::normal_", "aten::bernoulli_", "aten::exponential_", "aten::geometric_",
     "aten::cauchy_", "aten::log_normal_"}
)  # fmt: skip

RESIZES = frozenset({"aten::resize_", "aten::resize_as_"})
"""Operators tagged ``inplace_view`` that may allocate bytes."""

_READS_METADATA = frozenset(
    {"aten::_has_compatible_shallow_copy_type", "aten::_has_same_storage_numel", "aten::is_pinned",
     "aten::is_same_size", "aten::is_set_to"}
)  # fmt: skip
"""Operators that return no tensor, and whose answer depends on no value. C++ calls the first one
when ``tensor.data`` is assigned."""

LIFTS = frozenset({"aten::lift", "aten::lift_fresh"})
"""Operators that import a tensor made by C++. Their schemas say view, but results are copies."""

ACCEPTS_MASKS = frozenset({"aten::index", "aten::_unsafe_index"})
"""Operators whose indices may be masks: the result then has a row for each true element."""

_COMPARES_ARGUMENTS = frozenset({torch.ops.aten._native_multi_head_attention.default})
"""Operators whose results have other bits if two arguments are one tensor (C++: ``is_same``)."""

COMPOSITES_TO_DECOMPOSE = frozenset(
    {"aten::item", "aten::is_nonzero", "aten::argwhere", "aten::nonzero_numpy",
     "aten::broadcast_tensors", "aten::meshgrid", "aten::atleast_1d", "aten::atleast_2d",
     "aten::atleast_3d", "aten::cartesian_prod", "aten::unflatten_dense_tensors"}
)  # fmt: skip
"""Composite operators whose parts read values, have a shape that depends on values, or are views,
which their own schemas do not say.
"""

_UNSAFE_VIEWS = frozenset(
    {"aten::unsafe_chunk", "aten::unsafe_split", "aten::unsafe_split_with_sizes"}
)
"""Operators that return views, which their schemas hide from autograd."""

_READ_ONLY = {
    # arguments that the schema marks as written, and the kernel only reads
    ("aten::_fused_adagrad_", "state_steps"): "FusedAdagradKernel.cpp: Python increments them",
}

_STATISTICS = ("running_mean", "running_var")
_MUTATED_IN_TRAINING = {
    # arguments that the kernel writes without a mark in the schema, and the flag that enables it
    "aten::native_batch_norm": (_STATISTICS, "training"),
    "aten::cudnn_batch_norm": (_STATISTICS, "training"),
    "aten::miopen_batch_norm": (_STATISTICS, "training"),
    "aten::_batch_norm_impl_index": (_STATISTICS, "training"),
    "aten::batch_norm": (_STATISTICS, "training"),
    "aten::instance_norm": (_STATISTICS, "use_input_stats"),
}

_RANDOM_WITHOUT_TAG = frozenset(
    {"aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::rrelu",
     "aten::native_dropout", "aten::multinomial", "aten::_scaled_dot_product_flash_attention",
     "aten::_scaled_dot_product_efficient_attention", "aten::_standard_gamma",
     "aten::_sample_dirichlet", "aten::poisson", "aten::binomial"}
)  # fmt: skip

_CHECKS_PARAMETERS = frozenset(
    {"aten.bernoulli.default", "aten.bernoulli", "aten.bernoulli_.Tensor", "aten.bernoulli.Tensor",
     "aten.multinomial.default", "aten.multinomial", "aten.poisson.default", "aten.poisson",
     "aten.binomial.default", "aten.binomial",
     "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor"}
)  # fmt: skip
"""Random operators that refuse some values of their parameters; names without ``.out``."""

_COLLECTIVE = (
    "c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "c10d_functional::", "_dtensor::"
)  # fmt: skip

_PRODUCTS = {
    "rnn": ("rnn", "lstm", "gru"),
    "conv": ("conv",),
    "matmul": (
        "mm", "mv", "matmul", "linear", "dot", "attention", "einsum", "inner", "outer", "linalg",
        "cdist", "bilinear",
    ),
}  # fmt: skip
"""Parts of the names of operators that multiply matrices, or that are composed of such operators,
by the kind of product that ``torch.backends`` has settings for."""

_VALUE_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


_TAKES_FUNCTIONS = OpTraits(
    **{  # type: ignore[arg-type]
        **dict.fromkeys(OpTraits._fields, False),
        **dict.fromkeys(("mutated_positions", "mutated_names"), ()),
        "mutates_if_position": None,
        "is_metadata_only": True,  # is not recorded itself
        "reads_values": True,
        "returns_tensors": True,
    }
)
"""The traits of higher-order operators: the functions that they call use operators with traits."""


_known_traits: dict[int, tuple[Any, OpTraits]] = {}
"""The traits that :func:`traits_of` has read, by the operator's identity, with the operator."""


def traits_of(func: Any) -> OpTraits:
    """The traits of `func`, read from its schema once.

    They are cached by the operator's identity, since its own hash is a Python call. The table keeps
    the operator alive.
    """
    cached = _known_traits.get(id(func))
    if cached is None:
        cached = _known_traits[id(func)] = func, _read_schema(func)
    return cached[1]


def _read_schema(func: Any) -> OpTraits:
    if not hasattr(func, "_schema"):
        return _TAKES_FUNCTIONS._replace(name=str(func), packet=str(func))
    schema = func._schema
    packet = schema.name
    arguments = schema.arguments
    is_view = func.is_view or packet in {"aten::detach", "aten::alias"}
    traits = OpTraits(
        name=str(func),
        packet=packet,
        mutated_positions=tuple(
            i for i, a in enumerate(arguments) if _is_mutated(packet, a) and not a.kwarg_only
        ),
        mutated_names=tuple(a.name for a in arguments if _is_mutated(packet, a)),
        is_random=_draws(func, packet, arguments),
        returns_uninitialized=packet in _RETURNS_UNINITIALIZED,
        is_empty_factory=packet in _RETURNS_UNINITIALIZED
        and not any("Tensor" in str(a.type) for a in arguments),
        is_view=is_view,
        keeps_inference=packet in _UNSAFE_VIEWS or (is_view and str(func) != "aten.view.dtype"),
        refuses_numbers_at=_refuses_numbers_at(func, packet),
        mixes_devices=packet in _MIXES_DEVICES or packet.startswith("aten::_foreach_"),
        is_data_dependent=bool(_VALUE_TAGS.intersection(func.tags)),
        mutates_if_position=_flag_position(packet, arguments),
        is_foreach=packet.startswith("aten::_foreach_"),
        kernel_counts_writes=packet.startswith("aten::_foreach_") or counts_writes_in_python(func),
        is_metadata_only=_is_metadata_only(func, packet, arguments),
        reads_values=_reads_values(func, packet, arguments),
        returns_tensors=_returns_tensors(func),
        overwrites_first=packet in _OVERWRITES_FIRST,
        is_collective=packet.startswith(_COLLECTIVE),
        product_kind=next((k for k, p in _PRODUCTS.items() if any(n in packet for n in p)), None),
        checks_parameters=str(func).removesuffix(".out").removesuffix("_out") in _CHECKS_PARAMETERS,
        is_recorded_plainly=False,
    )
    is_plain = func not in _COMPARES_ARGUMENTS and _is_recorded_plainly(traits, arguments)
    return traits._replace(is_recorded_plainly=is_plain)


def _refuses_numbers_at(func: Any, packet: str) -> range:
    """Which tensors must not be numbers on the CPU. TensorIterator, which pointwise operators use,
    takes them; the code in front of other kernels of CUDA compares the devices of all tensors.
    """
    name = packet.removeprefix("aten::").removesuffix("_")
    each = _DOES_TO_EACH.get(name, name.removeprefix("_foreach_"))
    is_refusing = each in _REFUSING
    if packet.startswith("aten::") and each == name not in _TAKING and not is_refusing:
        is_refusing = not cpp_metadata.is_pointwise(func) and kernels.has_kernels_of_devices(func)
    return _REFUSING_AT.get(each, range(sys.maxsize if is_refusing else 0))


def _is_recorded_plainly(traits: OpTraits, arguments: Any) -> bool:
    """Whether an operator only makes a tensor or writes its first argument: no special case."""
    if traits.is_metadata_only or traits.is_view or traits.is_collective or traits.is_foreach:
        return False
    if traits.reads_values or traits.checks_parameters or not traits.returns_tensors:
        return False
    if any("Tensor" in str(a.type) and "List" in str(a.type) for a in arguments):
        return False
    if traits.packet in LIFTS or traits.packet in RESIZES or traits.packet == "aten::to":
        return False
    if traits.returns_uninitialized:
        return traits.is_empty_factory
    writes_first = traits.mutated_positions == (0,) and len(traits.mutated_names) == 1
    return not traits.mutated_names or (writes_first and traits.mutates_if_position is None)


def _is_metadata_only(func: Any, packet: str, arguments: Any) -> bool:
    if torch.Tag.inplace_view in func.tags:
        return packet not in RESIZES
    if packet in _READS_METADATA:
        return True
    is_view = func.is_view and packet not in LIFTS and not kernels.is_decomposed_in_cpp(func)
    return is_view and not any(_is_mutated(packet, a) for a in arguments)


def _reads_values(func: Any, packet: str, arguments: Any) -> bool:
    if packet in ACCEPTS_MASKS or _VALUE_TAGS.intersection(func.tags):
        return True
    return not _returns_tensors(func) and not any(_is_mutated(packet, a) for a in arguments)


def _returns_tensors(func: Any) -> bool:
    return any("Tensor" in str(r.type) for r in func._schema.returns)


def _flag_position(packet: str, arguments: Any) -> int | None:
    if packet not in _MUTATED_IN_TRAINING:
        return None
    return [a.name for a in arguments].index(_MUTATED_IN_TRAINING[packet][1])


def _is_mutated(packet: str, argument: Any) -> bool:
    if (packet, argument.name) in _READ_ONLY:
        return False
    if argument.name in _MUTATED_IN_TRAINING.get(packet, ((), ""))[0]:
        return True
    return argument.alias_info is not None and argument.alias_info.is_write


def _draws(func: Any, packet: str, arguments: Any) -> bool:
    if torch.Tag.nondeterministic_seeded in func.tags or packet in _RANDOM_WITHOUT_TAG:
        return True
    return any(a.name == "generator" for a in arguments)


@cache
def overload_with_generator(func: Any) -> Any:
    """The overload of a random operator with a ``generator=`` more; None if there is none."""
    if any(a.name == "generator" for a in func._schema.arguments):
        return func
    packet = func.overloadpacket
    own_names = [a.name for a in func._schema.arguments]
    for name in packet.overloads():
        overload = getattr(packet, name)
        names = [a.name for a in overload._schema.arguments]
        if "generator" in names and [n for n in names if n != "generator"] == own_names:
            return overload
    return None


def with_repeats(func: Any, args: Sequence[Any], values: list[Any]) -> list[Any]:
    """`values`, which stand for `args`. If `func` compares its arguments, an argument that is
    passed twice has one value.
    """
    if func not in _COMPARES_ARGUMENTS:
        return values
    by_id: dict[int, Any] = {}
    return [by_id.setdefault(id(arg), value) for arg, value in zip(args, values, strict=True)]
