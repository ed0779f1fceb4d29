"""Traits say how each operator treats its arguments, where its schema is incomplete too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchfake._core.schemas import ACCEPTS_MASKS, LIFTS, overload_with_generator, traits_of

aten = torch.ops.aten


def test_names() -> None:
    traits = traits_of(aten.add.Tensor)
    assert (traits.name, traits.packet) == ("aten.add.Tensor", "aten::add")
    assert traits_of(aten.add.Tensor) is traits


@pytest.mark.parametrize(
    ("func", "positions", "names"),
    [
        (aten.add.Tensor, (), ()),
        (aten.add_.Tensor, (0,), ("self",)),
        (aten.add.out, (), ("out",)),
        (aten.max.dim_max, (), ("max", "max_values")),
        (aten._foreach_add_.Scalar, (0,), ("self",)),
        (aten.set_.source_Tensor, (0,), ("self",)),
        (aten.native_batch_norm.default, (3, 4), ("running_mean", "running_var")),
        (aten._fused_adagrad_.default, (0, 1, 2), ("self", "grads", "state_sums")),
    ],
    ids=str,
)
def test_mutated_arguments(func: Any, positions: tuple[int, ...], names: tuple[str, ...]) -> None:
    traits = traits_of(func)
    assert (traits.mutated_positions, traits.mutated_names) == (positions, names)


def test_statistics_are_mutated_only_in_training() -> None:
    traits = traits_of(aten.native_batch_norm.default)
    assert traits.mutates_if_position is not None
    argument = aten.native_batch_norm.default._schema.arguments[traits.mutates_if_position]
    assert argument.name == "training"
    assert traits_of(aten.add_.Tensor).mutates_if_position is None


FLAGS: dict[str, tuple[list[Any], list[Any]]] = {
    "is_random": (
        [aten.rand.default, aten.normal_.default, aten.dropout.default, aten.multinomial.default],
        [aten.zeros.default, aten.add.Tensor],
    ),
    "returns_uninitialized": (
        [aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default],
        [aten.zeros.default],
    ),
    "is_empty_factory": (
        [aten.empty.memory_format, aten.empty_strided.default],
        [aten.empty_like.default, aten.new_empty.default, aten.zeros.default],
    ),
    "is_view": (
        [aten.view.default, aten.detach.default, aten.alias.default, aten.split.Tensor],
        [aten.clone.default, aten.view_copy.default],
    ),
    "refuses_numbers_at": (
        [aten.cat.default, aten.addcdiv.default, aten.lerp.Tensor, aten._foreach_maximum.List],
        [aten.add.Tensor, aten.maximum.default, aten._foreach_add.List],
    ),
    "mixes_devices": (
        [aten.copy_.default, aten.index.Tensor, aten._foreach_add.List],
        [aten.add.Tensor],
    ),
    "is_data_dependent": (
        [aten.nonzero.default, aten._local_scalar_dense.default],
        [aten.add.Tensor],
    ),
    "is_foreach": ([aten._foreach_add.List, aten._foreach_add_.Scalar], [aten.add.Tensor]),
    "is_metadata_only": (
        [aten.view.default, aten.t_.default, aten.squeeze_.default],
        [aten.resize_.default, aten.lift.default, aten.reshape.default, aten.add.Tensor],
    ),
    "reads_values": (
        [aten.index.Tensor, aten.nonzero.default, aten.equal.default, aten.is_nonzero.default],
        [aten.add.Tensor, aten.add_.Tensor, aten._foreach_add_.Scalar],
    ),
    "returns_tensors": (
        [aten.add.Tensor, aten.unbind.int],
        [aten.equal.default, aten._foreach_add_.Scalar],
    ),
    "overwrites_first": (
        [aten.fill_.Scalar, aten.copy_.default, aten.normal_.default],
        [aten.add_.Tensor, aten.resize_.default],
    ),
}


@pytest.mark.parametrize("flag", FLAGS)
def test_flags(flag: str) -> None:
    having, lacking = FLAGS[flag]
    assert [func for func in having if not getattr(traits_of(func), flag)] == []
    assert [func for func in lacking if getattr(traits_of(func), flag)] == []


def test_collectives() -> None:
    import torch.distributed._functional_collectives

    assert traits_of(torch.ops._c10d_functional.all_reduce.default).is_collective
    assert not traits_of(aten.add.Tensor).is_collective


def test_tables_name_operators_that_exist() -> None:
    for packet in (*LIFTS, *ACCEPTS_MASKS):
        namespace, name = packet.split("::")
        assert namespace == "aten"
        assert getattr(aten, name).overloads()


def test_overloads_with_a_generator() -> None:
    assert overload_with_generator(aten.rand.default) is aten.rand.generator
    assert overload_with_generator(aten.uniform_.default) is aten.uniform_.default
    assert overload_with_generator(aten.randperm.default) is aten.randperm.generator
    assert overload_with_generator(aten.dropout.default) is None
