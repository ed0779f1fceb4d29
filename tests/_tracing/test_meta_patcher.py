"""``fx.MetaAwareMethodsPatcher``: layers built on ``meta`` that take real inputs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental import proxy_tensor

from tests._tracing.conftest import (
    CPU,
    IGNORED_WARNINGS,
    META,
    assert_same_bits,
    methods,
    operators,
    tensors_on,
)
from tests._tracing.models import eager, model
from torchfake import deferred_init, deferred_mode, fake_like, fake_mode, fx, is_fake

pytestmark = IGNORED_WARNINGS


CONSTRUCTORS = [0, 2, 4, 5]  # of PATCHED_METHODS


@pytest.fixture
def patcher() -> Iterator[fx.MetaAwareMethodsPatcher]:
    made = fx.MetaAwareMethodsPatcher()
    yield made
    made.unpatch()


def layers() -> list[nn.Module]:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.randn(3))
            self.register_parameter("scale", nn.Parameter(self.shift + 1))
            self.empty = nn.Parameter()
            self.tied = self.shift

    class Wide(nn.Linear):
        def __init__(self, num: int) -> None:
            super().__init__(num, num, bias=False, device="cpu")

    encoder = nn.TransformerEncoderLayer(4, 2, batch_first=True)
    return [
        Own(), Wide(3), nn.Linear(2, 3), nn.Linear(2, 3, True, "cpu", torch.float64),
        nn.Embedding(5, 3), nn.Embedding(5, 3, 1, max_norm=1.0),
        nn.Embedding(2, 2, _weight=torch.ones(2, 2)),
        nn.Embedding.from_pretrained(torch.ones(2, 2)),
        nn.LazyLinear(3), nn.Bilinear(2, 3, 4), nn.Conv2d(2, 4, 3), nn.ConvTranspose1d(2, 4, 3),
        nn.BatchNorm2d(3), nn.GroupNorm(2, 4), nn.LayerNorm(3), nn.RMSNorm(3), nn.PReLU(),
        nn.LSTM(3, 4), nn.GRU(3, 4), nn.MultiheadAttention(4, 2), nn.EmbeddingBag(5, 3),
        nn.TransformerEncoder(encoder, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)),
        nn.utils.skip_init(nn.Linear, 2, 3), copy.deepcopy(nn.Linear(2, 3)),
    ]  # fmt: skip


def shapes(modules: list[nn.Module]) -> list[Any]:
    found = []
    for module in modules:
        named = itertools.chain(module.named_parameters(), module.named_buffers())
        plain = [(n, t) for n, t in named if not nn.parameter.is_lazy(t)]
        found.append([(n, t.shape, t.dtype, t.stride(), t.requires_grad) for n, t in plain])
    return found


def test_every_parameter_is_on_meta(patcher: fx.MetaAwareMethodsPatcher) -> None:
    """In every layer, whatever device is named; buffers are real."""
    expected, before = shapes(layers()), methods()
    with patcher as entered:
        assert entered is patcher
        made = layers()
    for module in made:
        assert {p.device for p in module.parameters()} <= {META}, module
        assert {b.device for b in module.buffers()} <= {CPU}, module
    assert shapes(made) == expected
    assert made[0].tied is made[0].shift
    for index in CONSTRUCTORS:
        assert methods()[index] is before[index]
    assert nn.Linear(2, 3).weight.device == CPU
    lazy = made[8]
    assert lazy(torch.ones(4, 5)).shape == (4, 3)
    assert (lazy.weight.device, lazy.weight.shape) == (META, (3, 5))


@pytest.mark.parametrize("name", ["bert", "mixtral"])
def test_models_on_meta_are_traced(name: str, patcher: fx.MetaAwareMethodsPatcher) -> None:
    """Models built in the context have the shapes of real ones, and the same traced nodes."""
    build, inputs = model(name)
    with patcher:
        module = build()
    assert {p.device for p in module.parameters()} == {META}
    assert shapes([module]) == shapes([eager(name)])
    patcher.unpatch()
    expected = fx.make_fx(fake_like(eager(name)), *inputs)
    assert operators(fx.make_fx(module, *inputs)) == operators(expected)
    assert {p.device for p in module.parameters()} == {META}


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "real": lambda t: t,
    "meta": lambda t: t.to(META),
    "fake": fake_like,
    "fake cuda": lambda t: fake_like(t, device="cuda:1"),
    "deferred": lambda t: deferred_init(torch.zeros_like, t),
    "not contiguous": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_forwards_without_weights(
    kind: str, dtype: torch.dtype, patcher: fx.MetaAwareMethodsPatcher
) -> None:
    """The output has eager's shape and dtype, and the input's device and kind."""
    with patcher:
        linear = nn.Linear(3, 5, dtype=dtype)
        embedding = nn.Embedding(7, 4, padding_idx=1, max_norm=2.0, dtype=dtype)
    with torch.no_grad():
        eager_linear, eager_embedding = (
            nn.Linear(3, 5, dtype=dtype),
            nn.Embedding(7, 4, dtype=dtype),
        )
    floats, tokens = torch.ones(2, 3, 3, dtype=dtype), torch.arange(6).view(2, 3)
    for layer, oracle, real in (
        (linear, eager_linear, floats),
        (embedding, eager_embedding, tokens),
        (linear, eager_linear, floats[0, 0]),
        (linear, eager_linear, floats[:, :0]),
    ):
        given = KINDS[kind](real)
        result, expected = layer(given), oracle(real)
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        assert (result.device, is_fake(result)) == (given.device, is_fake(given))
        if kind == "real":
            assert not result.any()


def test_forwards_under_autocast(patcher: fx.MetaAwareMethodsPatcher) -> None:
    with patcher:
        layer, double = nn.Linear(3, 5), nn.Linear(3, 5, dtype=torch.float64)
    real = nn.Linear(3, 5)
    with torch.autocast("cpu"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            given = torch.ones(2, 3, dtype=dtype)
            assert layer(given).dtype == real(given).dtype == torch.bfloat16
        wide = torch.ones(2, 3, dtype=torch.float64)
        assert double(wide).dtype == real.double()(wide).dtype


def test_forwards_in_a_trace(patcher: fx.MetaAwareMethodsPatcher) -> None:
    """With real inputs: symbolic_trace, make_fx, and torch.compile as optimum calls it."""
    with patcher:
        module = nn.Sequential(nn.Embedding(7, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    tokens = torch.arange(6).view(2, 3)
    names = [node.op for node in torch.fx.symbolic_trace(module).graph.nodes]
    assert names == ["placeholder", *["call_module"] * 3, "output"]
    traced = proxy_tensor.make_fx(module)(tokens)
    assert tensors_on(traced)[-1].shape == module(tokens).shape == (2, 3, 2)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert compiled(tokens).shape == (2, 3, 2)
    with pytest.raises(RuntimeError):
        module[2](torch.ones(2, 3))  # inputs are checked as without the patch


def test_real_layers_are_not_changed(patcher: fx.MetaAwareMethodsPatcher) -> None:
    layer, table = nn.Linear(3, 5), nn.Embedding(7, 4)
    floats, tokens = torch.randn(2, 3), torch.arange(6)
    expected = [layer(floats), table(tokens)]
    with patcher:
        assert_same_bits(expected, [layer(floats), table(tokens)])
        layer.weight.data.add_(0)
    assert_same_bits(expected, [layer(floats), table(tokens)])
    assert layer(floats).requires_grad
    assert layer.weight.device == CPU


def test_nested_contexts() -> None:
    """One patcher twice, two at once: the last to leave restores constructors and forwards."""
    before, one, other = methods(), fx.MetaAwareMethodsPatcher(), fx.MetaAwareMethodsPatcher()
    with one, other:
        with one:
            assert nn.Linear(2, 3).weight.is_meta
        assert nn.LayerNorm(3).weight.is_meta
    layer_on_meta = _linear_on_meta(one)
    assert [methods()[i] is before[i] for i in CONSTRUCTORS] == [True] * 4
    one.unpatch()
    one.unpatch()
    assert layer_on_meta(torch.ones(2)).shape == (3,)
    other.unpatch()
    assert all(m is b for m, b in zip(methods(), before, strict=True))
    with pytest.raises((RuntimeError, NotImplementedError)):
        layer_on_meta(torch.ones(2))
    fx.MetaAwareMethodsPatcher().unpatch()


def _linear_on_meta(patcher: fx.MetaAwareMethodsPatcher) -> nn.Module:
    with patcher:
        return nn.Linear(2, 3)


def test_unpatched_inside_the_context() -> None:
    """The constructors stay replaced; the forwards are replaced again at the next entry."""
    patcher, before = fx.MetaAwareMethodsPatcher(), methods()
    with patcher:
        patcher.unpatch()
        layer = nn.Linear(2, 3)
    assert layer.weight.is_meta
    assert all(m is b for m, b in zip(methods(), before, strict=True))
    with patcher:
        pass
    assert layer(torch.ones(2)).device == CPU
    patcher.unpatch()


def test_an_exception_inside() -> None:
    patcher, before = fx.MetaAwareMethodsPatcher(), methods()
    with pytest.raises(ZeroDivisionError), patcher:
        raise ZeroDivisionError
    assert nn.Linear(2, 3).weight.device == CPU
    patcher.unpatch()
    assert all(m is b for m, b in zip(methods(), before, strict=True))


def test_other_threads_build_real_layers(patcher: fx.MetaAwareMethodsPatcher) -> None:
    def devices() -> set[torch.device]:
        made = [nn.Linear(2, 3), nn.Embedding(2, 3), nn.LayerNorm(3), nn.LazyLinear(2)]
        return {p.device for m in made for p in m.parameters()}

    with ThreadPoolExecutor(1) as pool, patcher:
        assert pool.submit(devices).result() == {CPU}
        assert devices() == {META}
        with fx.MetaAwareMethodsPatcher() as other:
            assert pool.submit(devices).result() == {CPU}
        other.unpatch()


def test_a_patch_by_other_code_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    patcher = fx.MetaAwareMethodsPatcher()
    with patcher:
        layer = nn.Linear(2, 3)
    replacement = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, input: replacement(self, input))
    wrapper = nn.Linear.forward
    patcher.unpatch()
    assert nn.Linear.forward is wrapper
    assert nn.Linear(2, 3)(torch.ones(2)).shape == (3,)
    with pytest.raises(RuntimeError):
        layer(torch.ones(2))  # the wrapped replacement now calls the original
    monkeypatch.undo()
    nn.Linear.forward = replacement.__wrapped__  # type: ignore[attr-defined, method-assign]


def test_nothing_is_drawn_for_linear_layers_and_embeddings() -> None:
    patcher, state = fx.MetaAwareMethodsPatcher(), torch.get_rng_state()
    with patcher:
        nn.Linear(1 << 20, 1 << 20), nn.Embedding(1 << 30, 1 << 10)
    patcher.unpatch()
    assert torch.equal(torch.get_rng_state(), state)


def test_fakes_made_inside_are_on_meta_too(patcher: fx.MetaAwareMethodsPatcher) -> None:
    with patcher, fake_mode(fake_cuda=1):
        made = [nn.Linear(2, 3, device="cuda"), nn.LayerNorm(3, device="cuda")]
    with deferred_mode(), patcher:
        made += [nn.Linear(2, 3), nn.LayerNorm(3)]
    assert {type(p.data) for m in made for p in m.parameters()} == {torch.Tensor}
    assert {p.device for m in made for p in m.parameters()} == {META}
