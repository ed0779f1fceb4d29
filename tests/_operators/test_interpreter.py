"""The general procedure: meta tensors alias as the fakes do, and results are read back."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from torchfake import deferred_mode, fake_mode
from torchfake._cache import cache
from torchfake.errors import UnknownValueError


def test_a_storage_resized_to_zero_stays_empty():
    with fake_mode():
        x = torch.randn(4)
        x.untyped_storage().resize_(0)
        assert (x.view(2, 2) + 1).shape == (2, 2)
        assert x.untyped_storage().nbytes() == 0


def test_a_product_with_weights_of_four_bits_has_its_shape() -> None:
    """torch's meta kernel (2.13) asks for the device of its own fakes."""
    with fake_mode(fake_cuda=True):
        x = torch.ones(3, 64, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(4, 1, 32, 4, dtype=torch.int32, device="cuda")
        scales = torch.empty(2, 32, 2, dtype=torch.bfloat16, device="cuda")
        found = torch.ops.aten._weight_int4pack_mm(x, weight, 32, scales)
    assert (found.shape, found.dtype, found.device.type) == ((3, 32), torch.bfloat16, "cuda")


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", ["rand", "randn", "randint", "randperm"])
def test_factories_without_a_device_draw_once(name: str, mode: Callable[[], Any]) -> None:
    """As TorchScript calls them: Python's functions pass a device."""
    func = getattr(torch.ops.aten, name).default
    arguments = {"randint": (9, [3]), "randperm": (5,)}.get(name, ([3],))
    torch.manual_seed(0)
    expected = func(*arguments), torch.get_rng_state()
    cache.clear()
    torch.manual_seed(0)
    with mode():
        found = func(*arguments)
        assert found.tolist() == expected[0].tolist()
        assert torch.equal(torch.get_rng_state(), expected[1])


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_on_the_cpu_have_unknown_values(layer: Any) -> None:
    """C++ composes them in another order for fakes: their known values had other last bits."""
    with fake_mode():
        output, _ = layer(4, 4)(torch.ones(3, 1, 4))
        with pytest.raises(UnknownValueError):
            output.tolist()


RANGES: dict[str, Callable[[Any], Any]] = {
    "arange": lambda out: torch.arange(4, out=out),
    "arange, from": lambda out: torch.arange(1, 9, 2, out=out),
    "linspace": lambda out: torch.linspace(0, 1, 4, out=out),
    "logspace": lambda out: torch.logspace(0, 1, 4, out=out),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", RANGES)
def test_ranges_into_tensors_of_as_many_elements_keep_their_shape(
    name: str, mode: Callable[[], Any]
) -> None:
    def program() -> list[Any]:
        outs = [torch.zeros(2, 2).t(), torch.zeros(2, 2), torch.zeros(4, 1)]
        made = [RANGES[name](out) for out in outs]
        return [(tuple(each.shape), each.stride(), each.tolist()) for each in made]

    expected = program()
    with mode():
        assert program() == expected


RESIZED = {
    "loss": lambda n: functional.binary_cross_entropy(torch.rand(n, 5), torch.rand(n, 5)),
    "loss without elements": lambda n: functional.binary_cross_entropy(*torch.rand(2, 0, n)),
    "loss, not reduced": lambda n: functional.binary_cross_entropy(
        torch.rand(n, 5), torch.rand(n, 5), reduction="none"
    ),
    "fold": lambda n: functional.fold(torch.rand(n, 6, 16), (3, 10), (2, 3)),
    "fold into larger images": lambda n: functional.fold(torch.rand(n, 4, 4), 10, 2, stride=6),
    "unfold": lambda n: functional.unfold(torch.rand(n, 1, 10, 10), 2, stride=5),
    "unfold into larger blocks": lambda n: functional.unfold(torch.rand(n, 3, 5, 6), 2),
}


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
@pytest.mark.parametrize("name", RESIZED)
def test_results_keep_the_memory_that_eager_has_resized(name: str, mode: Callable[[], Any]) -> None:
    for batch in (3, 2, 7, 64):  # the later ones follow from what is cached
        expected = RESIZED[name](batch)
        with mode():
            made = RESIZED[name](batch)
        assert made.shape == expected.shape
        assert made.stride() == expected.stride()
        assert made.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
