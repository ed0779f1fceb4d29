"""Layers that are constructed in a mode, again and again, are as layers that eager constructs."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests._patches.sources.test_resets import LAYERS as RESETS
from torchfake import deferred_init, deferred_mode, fake_mode, is_fake, materialize_module

LAYERS: dict[str, Callable[[], Any]] = {
    **{name: make for name, make in RESETS.items() if "without inputs" not in name},
    "frozen Embedding": lambda: nn.Embedding(50, 20, _freeze=True),
    "Embedding of a maximum": lambda: nn.Embedding(50, 20, max_norm=1.5, sparse=True),
    "Conv2d, padded with a string": lambda: nn.Conv2d(8, 80, (3, 5), padding="same"),
    "Conv2d, groups": lambda: nn.Conv2d(8, 80, 3, 2, (1, 2), groups=4, padding_mode="reflect"),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(8, 80, 3, output_padding=1, stride=2),
    "LayerNorm of two dimensions": lambda: nn.LayerNorm((10, 12), eps=1e-3),
    "LayerNorm of a size": lambda: nn.LayerNorm(torch.Size((100,))),
    "LayerNorm of a list": lambda: nn.LayerNorm([100]),
    "RMSNorm of float16": lambda: nn.RMSNorm(100, eps=1e-6, dtype=torch.float16),
    "BatchNorm2d of another momentum": lambda: nn.BatchNorm2d(100, momentum=None),
    "LSTM": lambda: nn.LSTM(20, 30, 2),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(80, 4, 96),
}

pytestmark = pytest.mark.usefixtures("nothing_learned")


def tensors_of(module: nn.Module) -> list[tuple[str, Any]]:
    return [*module.named_parameters(), *module.named_buffers()]


def seen_of(layer: nn.Module) -> list[Any]:
    """All attributes of the modules, in their order, and all that is to be seen of the tensors."""
    found: list[Any] = []
    for module in layer.modules():
        for name, value in vars(module).items():
            found.append((type(module).__name__, name, type(value)))
            if name in ("_parameters", "_buffers", "_modules"):
                found.append([(key, each is None) for key, each in value.items()])
            elif not callable(value) and "flat_weight" not in name:
                elements = value if type(value) in (list, tuple) else [value]
                found.append((repr(value), [type(each) for each in elements]))
    for name, tensor in tensors_of(layer):
        found += (name, tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.grad)
        found += (tensor.requires_grad, tensor.is_leaf, tensor.storage_offset())
        found += (isinstance(tensor, nn.Parameter), tensor.untyped_storage().nbytes())
        found += (tensor.output_nr, tensor.is_inference(), tensor._base is None)
        found.append(None if tensor.is_inference() else tensor._version)
    found.append(torch.get_rng_state().tolist())
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_layers_as_in_eager(name: str) -> None:
    def seen() -> list[Any]:
        torch.manual_seed(3)
        return [seen_of(LAYERS[name]()) for _ in range(5)]

    eager = seen()
    with fake_mode():
        assert seen() == eager
    with fake_mode():
        assert seen() == eager
    with deferred_mode():
        assert seen() == eager


@pytest.mark.parametrize("name", LAYERS)
def test_deferred_layers_have_the_values_of_eager(name: str) -> None:
    def layers() -> nn.ModuleList:
        return nn.ModuleList(LAYERS[name]() for _ in range(5))

    torch.manual_seed(3)
    eager, after = layers(), torch.rand(3)
    torch.manual_seed(3)
    deferred = deferred_init(layers)
    assert torch.equal(torch.rand(3), after)
    materialize_module(deferred)
    for (_, expected), (_, found) in zip(tensors_of(eager), tensors_of(deferred), strict=True):
        assert torch.equal(expected, found)
        assert expected._version == found._version


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_layers_share_nothing(mode: Any) -> None:
    with mode():
        layers = [nn.Conv2d(8, 80, 3, padding="same") for _ in range(5)]
        norms = [nn.BatchNorm2d(80) for _ in range(5)]
    for one, other in itertools.combinations(layers, 2):
        assert one._reversed_padding_repeated_twice is not other._reversed_padding_repeated_twice
    for one, other in itertools.combinations([*layers, *norms], 2):
        for name, value in vars(one).items():
            if isinstance(value, (dict, set, list)):
                assert value is not vars(other).get(name)
        for (_, mine), (_, others) in itertools.product(tensors_of(one), tensors_of(other)):
            assert mine is not others
            assert mine._fake_storage is not others._fake_storage
    layers[-1].weight.detach().add_(1)
    assert [layer.weight._version for layer in layers] == [1, 1, 1, 1, 2]


def test_parameters_are_made_where_the_layer_is() -> None:
    with fake_mode():
        for _ in range(4):
            here = nn.Linear(30, 100).weight
            there = nn.LayerNorm(100).weight
    first, second = (t._fake_storage.source_location for t in (here, there))
    assert second.line == first.line + 1
    assert first.code.co_filename == __file__


def test_layers_are_freed() -> None:
    with fake_mode():
        refs = [weakref.ref(nn.Linear(30, 100).weight._fake_storage) for _ in range(5)]
    assert [ref() for ref in refs] == [None] * 5


def test_arguments_that_are_equal_and_of_other_types() -> None:
    """``0.0 == -0.0``, and an integer may be of a class: a layer keeps what it was given."""

    class Whole(int):
        pass

    def kept(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return [(type(v), repr(v)) for v in vars(cls(*args, **kwargs)).values() if v is not None]

    def seen() -> list[Any]:
        found: list[Any] = []
        for _ in range(4):
            found += [kept(nn.Linear, 1, each) for each in (100, 1, Whole(1), Whole(100))]
            found += [kept(nn.Linear, 2, 100, bias=each) for each in (1, True, 0, False)]
            found += [kept(nn.LayerNorm, 100, eps) for eps in (0.0, -0.0, 1e-5, 1, True)]
            found += [kept(nn.Conv2d, 2, 80, each) for each in ((1, 1), 1, (Whole(1), 1))]
            found += [kept(nn.LayerNorm, each) for each in ((100,), torch.Size((100,)), [100])]
        return [[text for kind, text in each if kind in (int, bool, float, tuple, Whole)]
                for each in found]  # fmt: skip

    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_refusals_as_in_eager() -> None:
    def refused() -> list[str]:
        found = []
        for call in (
            lambda: nn.Linear(-3, 100),
            lambda: nn.Linear(30),  # type: ignore[call-arg]
            lambda: nn.Linear(30, 100, bias=True, color="red"),  # type: ignore[call-arg]
            lambda: nn.Conv2d(3, 80, 3, groups=2),
            lambda: nn.Embedding(5, 20, padding_idx=7),
            lambda: nn.GroupNorm(3, 100),
        ):
            for _ in range(3):
                with pytest.raises((RuntimeError, TypeError, ValueError, AssertionError)) as error:
                    call()
                found.append(str(error.value))
        return found

    eager = refused()
    with fake_mode():
        for _ in range(3):
            nn.Linear(30, 100), nn.Conv2d(4, 80, 3, groups=2), nn.GroupNorm(4, 100)
        assert refused() == eager


def test_a_layer_that_is_constructed_twice() -> None:
    def seen() -> list[Any]:
        torch.manual_seed(3)
        found = []
        for _ in range(4):
            layer: Any = nn.Linear(30, 100)
            layer.mine, layer.bias = 3, None
            layer.__init__(30, 100)
            found.append(seen_of(layer))
            layer = nn.Linear.__new__(nn.Linear)
            layer.mine = 4
            layer.__init__(30, 100)
            found.append(seen_of(layer))
        return found

    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_settings_of_the_program() -> None:
    def seen() -> list[Any]:
        found = []
        for _ in range(3):
            found.append(seen_of(nn.Linear(30, 100)))
            torch.set_default_dtype(torch.float64)
            found.append(seen_of(nn.Linear(30, 100)))
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(True)
            found.append(seen_of(nn.Linear(30, 100)))
            torch.use_deterministic_algorithms(False)
            with torch.no_grad():
                found.append(seen_of(nn.Linear(30, 100)))
            with torch.inference_mode():
                found.append(seen_of(nn.Linear(30, 100)))
        return found

    torch.manual_seed(3)
    eager = seen()
    with fake_mode():
        torch.manual_seed(3)
        assert seen() == eager


def test_devices_of_the_program() -> None:
    with fake_mode(fake_cuda=True):
        for _ in range(3):
            assert nn.Linear(30, 100).weight.device.type == "cpu"
            assert nn.Linear(30, 100, device="cuda").weight.device.type == "cuda"
            assert nn.Linear(30, 100, device="meta").weight.device.type == "meta"
            with torch.device("cuda"):
                assert nn.Linear(30, 100).weight.device.type == "cuda"
    for _ in range(3):
        layer = nn.Linear(30, 100)
        assert not is_fake(layer.weight)
        assert type(layer.weight) is nn.Parameter


def test_modes_one_in_another() -> None:
    for _ in range(3):
        with fake_mode():
            assert nn.Linear(30, 100).weight._fake_storage.deferred is None
            with deferred_mode():
                assert nn.Linear(30, 100).weight._fake_storage.deferred is not None
            assert nn.Linear(30, 100).weight._fake_storage.deferred is None


def test_a_tensor_that_is_given_is_not_kept() -> None:
    with fake_mode():
        weight = torch.empty(50, 20)
        ref = weakref.ref(weight)
        for _ in range(5):
            assert nn.Embedding(50, 20, _weight=weight).weight._fake_storage is weight._fake_storage
        del weight
    assert ref() is None


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_values_of_small_draws(order: tuple[int, ...]) -> None:
    """They are known, whenever they are read, and whatever else has been drawn or is gone."""
    makes: tuple[Callable[[], Any], ...] = (
        lambda: nn.Linear(30, 8).bias,
        lambda: nn.Conv1d(2, 4, 3).weight,
        lambda: nn.init.trunc_normal_(nn.Embedding(3, 5, padding_idx=1).weight, std=0.5),
    )

    def seen() -> list[Any]:
        torch.manual_seed(3)
        made = [[makes[i]() for i in order] for _ in range(6)]
        found = [made[3][0].tolist(), torch.rand(3).tolist(), made[5][2].tolist()]
        del made[4]
        found += [[tensor.tolist() for tensor in each] for each in made]
        return [*found, torch.get_rng_state().tolist(), made[0][1].detach().mul_(2).tolist()]

    eager = seen()
    with fake_mode():
        assert seen() == eager
        assert seen() == eager
