"""What an operator's schema says, read once.

Enters: an ``OpOverload``. Leaves: its :class:`OpPlan`. Invariant: a plan is a fact about the
operator alone, never about one call of it. The tables below hold what schemas do not say, each
with its reason; a new exception belongs here.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from torchfake import _private

aten = torch.ops.aten


class OpPlan(NamedTuple):
    """How one operator treats its arguments."""

    name: str  # "aten.add.Tensor"
    packet: str  # "aten::add"
    written_positions: tuple[int, ...]  # positional arguments it writes
    written_names: tuple[str, ...]  # keyword arguments it writes (out=)
    is_random: bool  # draws from a generator
    is_uninitialized: bool  # gives memory nobody has written
    is_blank: bool  # the same, and made of no tensor
    is_view: bool  # gives a view of its first argument
    scalars_mix: bool  # a 0-dim CPU argument goes along with any device
    mixes_devices: bool  # takes arguments on several devices
    needs_values: bool  # its result, or the shape of it, depends on values
    writes_if: int | None  # position of the flag without which it writes nothing
    per_element: bool  # a foreach: element i of the result is of element i of the first list
    only_looks: bool  # changes what a tensor looks at, and no bytes
    asks_values: bool  # its outcome is values, or a matter of values, for all or some arguments
    gives_tensors: bool  # has tensors among its results
    overwrites: bool  # writes the whole of its first argument, whatever was there
    is_collective: bool  # exchanges values between ranks


_MIXES_DEVICES = {
    # packets whose kernels take indices, lengths or sources from another device
    "aten::copy_": "copies between devices",
    "aten::copy": "copies between devices",
    "aten::_to_copy": "copies between devices",
    "aten::to": "copies between devices",
    "aten::index": "CPU indices into a CUDA tensor",
    "aten::_unsafe_index": "CPU indices into a CUDA tensor",
    "aten::index_put": "CPU indices into a CUDA tensor",
    "aten::index_put_": "CPU indices into a CUDA tensor",
    "aten::_index_put_impl_": "CPU indices into a CUDA tensor",
    "aten::_unsafe_index_put": "CPU indices into a CUDA tensor",
    "aten::set_": "takes another tensor's storage whatever it is",
    "aten::_pack_padded_sequence": "lengths stay on the CPU",
    "aten::_ctc_loss": "lengths may stay on the CPU",
    "aten::tensor_split": "sections stay on the CPU",
    "aten::_fused_adam_": "the learning rate may be a CPU tensor",
    "aten::_fused_adamw_": "the learning rate may be a CPU tensor",
    "aten::_fused_sgd_": "the learning rate may be a CPU tensor",
    "aten::_fused_adagrad_": "the learning rate may be a CPU tensor",
}

_UNINITIALIZED = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
     "aten::new_empty_strided", "aten::empty_permuted", "aten::empty_quantized",
     "aten::_efficientzerotensor"}
)  # fmt: skip

_OVERWRITES = frozenset(
    {"aten::fill_", "aten::zero_", "aten::copy_", "aten::random_", "aten::uniform_",
     "aten::normal_", "aten::bernoulli_", "aten::exponential_", "aten::geometric_",
     "aten::cauchy_", "aten::log_normal_"}
)  # fmt: skip

_GROWS = frozenset({"aten::resize_", "aten::resize_as_"})
"""Tagged as changes of a view, and may make new bytes."""

LIFTS = frozenset({"aten::lift", "aten::lift_fresh"})
"""Bring in data that C++ made: views to the schema, copies to all who see the result."""

TAKES_MASKS = frozenset({"aten::index", "aten::_unsafe_index"})
"""Have as many rows as a mask has ones, where an index is a mask."""

_READ_ONLY = {
    # arguments that schemas call written and kernels only read
    ("aten::_fused_adagrad_", "state_steps"): "FusedAdagradKernel.cpp: counted on in Python",
}

_STATISTICS = ("running_mean", "running_var")
_WRITTEN_IN_TRAINING = {
    # arguments that kernels write without saying so in the schema, and the flag that makes them
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

_COLLECTIVE = ("c10d::", "_c10d_functional::", "c10d_functional::")

_VALUE_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


_plans: dict[int, tuple[Any, OpPlan]] = {}


def plan_of(func: Any) -> OpPlan:
    """The plan of `func`, made at its first call.

    Kept by the operator's identity, and the operator with it: its own hash is a Python call.
    """
    known = _plans.get(id(func))
    if known is None:
        known = _plans[id(func)] = func, _read_schema(func)
    return known[1]


def _read_schema(func: Any) -> OpPlan:
    schema = func._schema
    packet = schema.name
    arguments = schema.arguments
    return OpPlan(
        name=str(func),
        packet=packet,
        written_positions=tuple(
            i for i, a in enumerate(arguments) if _is_written(packet, a) and not a.kwarg_only
        ),
        written_names=tuple(a.name for a in arguments if _is_written(packet, a)),
        is_random=_draws(func, packet, arguments),
        is_uninitialized=packet in _UNINITIALIZED,
        is_blank=packet in _UNINITIALIZED and not any("Tensor" in str(a.type) for a in arguments),
        is_view=func.is_view or packet in {"aten::detach", "aten::alias"},
        scalars_mix=packet not in {"aten::cat", "aten::stack"},
        mixes_devices=packet in _MIXES_DEVICES or packet.startswith("aten::_foreach_"),
        needs_values=bool(_VALUE_TAGS.intersection(func.tags)),
        writes_if=_flag_position(packet, arguments),
        per_element=packet.startswith("aten::_foreach_"),
        only_looks=_only_looks(func, packet, arguments),
        asks_values=_asks_values(func, packet, arguments),
        gives_tensors=_gives_tensors(func),
        overwrites=packet in _OVERWRITES,
        is_collective=packet.startswith(_COLLECTIVE),
    )


def _only_looks(func: Any, packet: str, arguments: Any) -> bool:
    if torch.Tag.inplace_view in func.tags:
        return packet not in _GROWS
    is_view = func.is_view and packet not in LIFTS and not _private.is_taken_apart(func)
    return is_view and not any(_is_written(packet, a) for a in arguments)


def _asks_values(func: Any, packet: str, arguments: Any) -> bool:
    if packet in TAKES_MASKS or _VALUE_TAGS.intersection(func.tags):
        return True
    return not _gives_tensors(func) and not any(_is_written(packet, a) for a in arguments)


def _gives_tensors(func: Any) -> bool:
    return any("Tensor" in str(r.type) for r in func._schema.returns)


def _flag_position(packet: str, arguments: Any) -> int | None:
    if packet not in _WRITTEN_IN_TRAINING:
        return None
    return [a.name for a in arguments].index(_WRITTEN_IN_TRAINING[packet][1])


def _is_written(packet: str, argument: Any) -> bool:
    if (packet, argument.name) in _READ_ONLY:
        return False
    if argument.name in _WRITTEN_IN_TRAINING.get(packet, ((), ""))[0]:
        return True
    return argument.alias_info is not None and argument.alias_info.is_write


def _draws(func: Any, packet: str, arguments: Any) -> bool:
    if torch.Tag.nondeterministic_seeded in func.tags or packet in _RANDOM_WITHOUT_TAG:
        return True
    return any(a.name == "generator" for a in arguments)


@cache
def with_generator(func: Any) -> Any:
    """The overload of a random operator that takes ``generator=``, or None."""
    if any(a.name == "generator" for a in func._schema.arguments):
        return func
    packet = func.overloadpacket
    wanted = [a.name for a in func._schema.arguments]
    for name in packet.overloads():
        overload = getattr(packet, name)
        names = [a.name for a in overload._schema.arguments]
        if "generator" in names and [n for n in names if n != "generator"] == wanted:
            return overload
    return None
