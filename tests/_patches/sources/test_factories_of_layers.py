"""Layers that are made in a mode, their counts and their deferred tensors, are as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests._patches.sources.test_factories import NAMES, SIZES, layers
from torchfake import (
    deferred_mode,
    fake_mode,
    is_deferred,
    materialize_module,
    materialize_tensor,
)

pytestmark = pytest.mark.usefixtures("nothing_learned")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("layer", ["Linear", "Conv2d", "BatchNorm2d", "LayerNorm", "PReLU"])
def test_layers_are_compiled_by_torch_jit(layer: str) -> None:
    """Which looks up the names in their code."""
    arguments = {"Conv2d": (2, 3, 3), "Linear": (2, 3)}.get(layer, (2,))
    with fake_mode():
        code = torch.jit.script(getattr(torch.nn, layer)(*arguments)).code
    assert code == torch.jit.script(getattr(torch.nn, layer)(*arguments)).code


@pytest.mark.parametrize("name", NAMES)
def test_deferred_tensors_are_as_in_eager(name: str) -> None:
    """Whatever was learned in a mode of one kind is used in the other."""

    def made() -> list[Any]:
        tensors = [getattr(layers.torch, name)(*size) for size in SIZES * 2]
        for tensor in tensors:
            tensor.fill_(2) if name == "empty" else tensor.add_(2)
        return [*tensors, *(torch.nn.Linear(3, 4) for _ in range(3))]

    torch.manual_seed(3)
    eager = made()
    torch.manual_seed(3)
    with deferred_mode():
        first = made()
    with fake_mode():
        made()
    torch.manual_seed(3)
    with deferred_mode():
        second = made()
    for fakes in (first, second):
        for fake, real in zip(fakes, eager, strict=True):
            if isinstance(fake, torch.nn.Module):
                materialize_module(fake)
                assert torch.equal(fake.weight, real.weight)
            else:
                assert is_deferred(fake)
                assert torch.equal(materialize_tensor(fake), real)


def test_empty_tensors_of_a_deferred_mode() -> None:
    with deferred_mode():
        made = [layers.torch.empty(3, 4) for _ in range(4)]
    for tensor in made:
        storage = tensor._fake_storage
        assert (
            storage.source_location.line
            == test_empty_tensors_of_a_deferred_mode.__code__.co_firstlineno + 2
        )
        assert storage.deferred.op is None
        assert (storage.op, storage.num_bytes) == (torch.ops.aten.empty.memory_format, 48)
        assert is_deferred(tensor)
    assert len({id(t._fake_storage.deferred.cell) for t in made}) == 4


NUMBERS: list[tuple[Any, dict[str, Any]]] = [
    (data, options)
    for data in (0, False, 0.0, -0.0, 1, True, 3, -3, 300, 1 << 40, 1 << 70, [0], torch.ones(()))
    for options in ({"dtype": torch.long}, {"dtype": torch.uint8}, {"dtype": torch.bfloat16}, {},
                    {"dtype": torch.bool, "device": None}, {"dtype": torch.long, "device": "cpu"},
                    {"dtype": torch.complex64}, {"dtype": torch.float32, "requires_grad": True})
]  # fmt: skip


def number(data: Any, options: dict[str, Any]) -> Any:
    try:
        made = layers.torch.tensor(data, **options)
    except Exception as error:
        return type(error)
    return made.dtype, str(made.tolist()), made.shape, made.requires_grad, made._version


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_tensors_of_numbers() -> None:
    expected = [number(*call) for call in NUMBERS]
    with fake_mode():
        for order in (1, -1, 1):
            assert [number(*call) for call in NUMBERS[::order]] == expected[::order]


def test_counts_of_batch_norms_are_their_own() -> None:
    with fake_mode():
        one, other = (torch.nn.BatchNorm1d(3) for _ in range(2))
        assert one.num_batches_tracked is not None
        one.num_batches_tracked.add_(1)
        assert (int(one.num_batches_tracked), int(other.num_batches_tracked)) == (1, 0)  # type: ignore[arg-type]
        assert int(torch.nn.BatchNorm1d(3).num_batches_tracked) == 0  # type: ignore[arg-type]
