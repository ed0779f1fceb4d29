"""Layers that are reset in a mode, again and again, are as layers that are reset in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tests._patches.sources.calls import called_in
from tests._patches.sources.test_initializers import Calls, Operators
from torchfake import deferred_init, deferred_mode, fake_mode, materialize_module
from torchfake._cache import cache
from torchfake._patches.sources import resets

LAYERS: dict[str, Callable[[], Any]] = {
    "Linear": lambda: nn.Linear(30, 100),
    "Linear of a small bias": lambda: nn.Linear(30, 8),
    "Linear without bias": lambda: nn.Linear(30, 100, bias=False),
    "Linear of bfloat16": lambda: nn.Linear(30, 100, dtype=torch.bfloat16),
    "Linear of float64": lambda: nn.Linear(31, 101, dtype=torch.float64),
    "Linear without inputs": lambda: nn.Linear(0, 100),
    "Conv1d": lambda: nn.Conv1d(8, 80, 3),
    "Conv2d": lambda: nn.Conv2d(8, 80, 3, bias=False),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(80, 90, 3),
    "Conv3d": lambda: nn.Conv3d(8, 80, 3),
    "Conv3d, channels last": lambda: nn.Conv3d(8, 80, 3).to(memory_format=torch.channels_last_3d),
    "LayerNorm": lambda: nn.LayerNorm(100),
    "LayerNorm without bias": lambda: nn.LayerNorm(100, bias=False),
    "LayerNorm without affine": lambda: nn.LayerNorm(100, elementwise_affine=False),
    "GroupNorm": lambda: nn.GroupNorm(4, 100),
    "RMSNorm": lambda: nn.RMSNorm(100),
    "Embedding": lambda: nn.Embedding(50, 20),
    "Embedding with padding": lambda: nn.Embedding(50, 20, padding_idx=3),
    "Bilinear": lambda: nn.Bilinear(10, 20, 80),
    "EmbeddingBag": lambda: nn.EmbeddingBag(50, 20),
    "BatchNorm2d": lambda: nn.BatchNorm2d(100),
    "BatchNorm1d without affine": lambda: nn.BatchNorm1d(100, affine=False),
    "BatchNorm3d without statistics": lambda: nn.BatchNorm3d(100, track_running_stats=False),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm(100),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(100),
    "InstanceNorm2d with all": lambda: nn.InstanceNorm2d(
        100, affine=True, track_running_stats=True
    ),
    "MultiheadAttention": lambda: nn.MultiheadAttention(80, 4),
}

pytestmark = pytest.mark.usefixtures("nothing_learned")


def seen_of(layer: nn.Module) -> list[Any]:
    """Version counters, values as far as they are known to a fake, and the generator's state."""
    tensors = [*layer.parameters(), *layer.buffers()]
    return [[tensor._version for tensor in tensors], torch.get_rng_state().tolist()]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", LAYERS)
def test_resets_as_in_eager(name: str) -> None:
    def seen() -> list[Any]:
        torch.manual_seed(3)
        found = []
        for _ in range(5):
            layer = LAYERS[name]()
            found.append(seen_of(layer))
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
                found.append(seen_of(layer))
        return found

    eager = seen()
    with fake_mode():
        assert seen() == eager


@pytest.mark.parametrize("name", ["LayerNorm", "GroupNorm", "RMSNorm", "BatchNorm2d"])
def test_filled_values_are_known(name: str) -> None:
    expected = [tensor.tolist() for tensor in LAYERS[name]().state_dict().values()]
    with fake_mode():
        for _ in range(5):
            layer = LAYERS[name]()
            with torch.no_grad():
                for tensor in layer.state_dict().values():
                    tensor.mul_(3)
            layer.reset_parameters()
            assert [tensor.tolist() for tensor in layer.state_dict().values()] == expected


def test_what_was_learned_does_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.settings, "checking", False)
    with fake_mode():
        for _ in range(3):
            nn.Linear(30, 100)
        assert not {"kaiming_uniform_", "uniform_"} & called_in(lambda: nn.Linear(30, 100))
        assert "kaiming_uniform_" in called_in(lambda: nn.Linear(30, 100, dtype=torch.float64))
        monkeypatch.setattr(nn.modules.linear, "math", None)
        with pytest.raises(AttributeError):
            nn.Linear(30, 100)


@pytest.mark.parametrize("name", ["Linear", "Conv1d", "LayerNorm", "BatchNorm1d", "Embedding"])
def test_layers_of_other_sizes(name: str) -> None:
    """Sizes whose values are kept, and are not; with rows of padding that others do not have."""

    def layers_of(size: int) -> Iterator[Any]:
        cls = getattr(nn, name)
        arguments = {"Linear": (33, size), "Conv1d": (3, size, 3), "Embedding": (size, 20)}
        yield cls(*arguments.get(name, (size,)))
        yield cls(*arguments.get(name, (size,)), dtype=torch.bfloat16)
        if name == "Embedding":
            yield cls(size, 20, padding_idx=4)

    def seen() -> list[Any]:
        torch.manual_seed(3)
        sizes = (70, 5, 300, 64, 100, 65, 20000, 7, 128, 31)
        return [seen_of(layer) for size in sizes for layer in layers_of(size)]

    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_a_row_of_padding_that_is_not_there() -> None:
    def refusal() -> type:
        for size in (70, 80, 90, 100):
            nn.Embedding(size, 20, padding_idx=4)
        layer = nn.Embedding(3, 20)
        layer.padding_idx = 4
        with pytest.raises(IndexError):
            layer.reset_parameters()
        return IndexError

    eager = refusal()
    with fake_mode():
        assert refusal() == eager


def test_an_attribute_without_a_hash() -> None:
    with fake_mode():
        layer: Any = nn.LayerNorm(30)
        layer.elementwise_affine = [1]
        for _ in range(3):
            layer.reset_parameters()


class Halved(nn.Module):
    def forward(self, tensor: Any) -> Any:
        return tensor / 2


def changed(kind: str, layer: Any) -> Any:
    if kind == "parametrized":
        return parametrize.register_parametrization(layer, "weight", Halved())
    if kind == "weight norm":
        return nn.utils.weight_norm(layer)
    if kind == "tied":
        layer.bias = nn.Parameter(layer.weight[0])
    if kind == "view":
        layer.weight = nn.Parameter(torch.ones(200, 30)[:100])
    if kind == "one weight less":
        layer.bias = None
    if kind == "frozen":
        layer.requires_grad_(False)
    if kind == "renamed":
        layer.register_parameter("scale", layer._parameters.pop("bias"))
        layer.bias = None
    return layer


KINDS = ["parametrized", "weight norm", "tied", "view", "one weight less", "frozen", "renamed"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_were_changed(kind: str) -> None:
    def seen() -> list[Any]:
        torch.manual_seed(3)
        for _ in range(3):
            nn.Linear(30, 100)
        found = []
        for _ in range(4):
            layer = changed(kind, nn.Linear(30, 100))
            try:
                layer.reset_parameters()
            except Exception as error:
                found.append(type(error))
            found += seen_of(layer)
        return found

    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_statistics_that_require_gradients_are_refused() -> None:
    def refusal() -> str:
        for _ in range(3):
            layer = nn.BatchNorm2d(100)
        layer.running_mean.requires_grad_()
        with pytest.raises(RuntimeError) as error:
            layer.reset_parameters()
        return str(error.value)

    eager = refusal()
    with fake_mode():
        assert refusal() == eager


def test_deferred_batch_norms() -> None:
    eager = nn.BatchNorm2d(100).state_dict()
    with deferred_mode():
        made = [nn.BatchNorm2d(100) for _ in range(5)]
    for layer in made:
        materialize_module(layer)
        assert all(torch.equal(t, eager[n]) for n, t in layer.state_dict().items())


def test_classes_of_their_own() -> None:
    class Mine(nn.Linear):
        resets = 0

        def reset_parameters(self) -> None:
            self.resets += 1
            super().reset_parameters()

    def seen() -> list[Any]:
        torch.manual_seed(3)
        made = [Mine(30, 100) for _ in range(4)]
        return [layer.resets for layer in made] + seen_of(made[-1])

    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_who_replaces_an_initialiser_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers does, to skip them."""
    seen = []
    with fake_mode():
        for _ in range(4):
            nn.Linear(30, 100)
        monkeypatch.setattr(nn.init, "uniform_", lambda tensor, *_: seen.append(tensor))
        made = [nn.Linear(30, 100) for _ in range(4)]
        other = [nn.Linear(30, 101) for _ in range(4)]
    assert [id(t) for t in seen] == [id(layer.bias) for layer in (*made, *other)]


@pytest.mark.parametrize("kind", [Calls, Operators])
def test_other_modes_see_it(kind: Any) -> None:
    def seen() -> list[str]:
        for _ in range(4):
            layer = nn.Linear(30, 100)
        with kind() as mode:
            layer.reset_parameters()
        return mode.seen  # type: ignore[no-any-return]

    eager = seen()
    with fake_mode():
        assert seen() == eager


def test_deferred_layers() -> None:
    torch.manual_seed(3)
    eager = nn.Linear(30, 100)
    eager.reset_parameters()
    with fake_mode():
        for _ in range(4):
            nn.Linear(30, 100)
    torch.manual_seed(3)
    deferred = deferred_init(nn.Linear, 30, 100)
    with fake_mode():
        nn.Linear(30, 100).reset_parameters()
    deferred.reset_parameters()
    materialize_module(deferred)
    for one, other in itertools.zip_longest(deferred.parameters(), eager.parameters()):
        assert torch.equal(one, other)


def test_torch_is_as_before_outside() -> None:
    before = {patch.owner: patch.owner.reset_parameters for patch in resets.PATCHES}
    with fake_mode():
        assert nn.Linear.reset_parameters is not before[nn.Linear]
        assert nn.Linear.reset_parameters.__name__ == "reset_parameters"
    assert {owner: owner.reset_parameters for owner in before} == before
