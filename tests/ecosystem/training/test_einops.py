"""einops: every operation and layer, on fakes and deferred, against eager."""

from __future__ import annotations

from typing import Any

import einops
import pytest
import torch
from einops import einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import nn

from tests.programs import assert_program
from torchfake import fake_mode

REARRANGED = (
    "b c h w -> b (c h w)", "b c (h p) (w q) -> b (h w) (p q c)", "b ... w -> w ... b",
    "b (g c) h w -> g b c h w", "b c h w -> b c h w 1",
)  # fmt: skip
SIZES = {"p": 2, "q": 3, "g": 3}
REDUCED = ("b c (h 2) (w 3) -> b c h w", "b c h w ->", "b c h w -> b () () c")
REPEATED = ("b c h w -> b c (h 2) (w 3)", "b c h w -> (5 b) c h w", "b c h w -> b 3 c h w")
PRODUCTS = ("b c h w, b c k w -> b c h k", "b ... w, a c h w -> b ... c", "b c h w, b c h w -> c")


def with_gradients(function: Any) -> Any:
    x = torch.randn(2, 3, 4, 6, requires_grad=True)
    result = function(x)
    result.pow(2).sum().backward()
    return result, x.grad


@pytest.mark.parametrize("pattern", REARRANGED)
def test_rearrange(pattern: str) -> None:
    sizes = {name: size for name, size in SIZES.items() if name in pattern}
    assert_program(lambda: with_gradients(lambda x: rearrange(x, pattern, **sizes)))


@pytest.mark.parametrize("pattern", REDUCED)
@pytest.mark.parametrize("by", ["mean", "sum", "max", "min", "prod", torch.logsumexp])
def test_reduce(pattern: str, by: Any) -> None:
    assert_program(lambda: with_gradients(lambda x: reduce(x, pattern, by)))


@pytest.mark.parametrize("pattern", REPEATED)
def test_repeat(pattern: str) -> None:
    assert_program(lambda: with_gradients(lambda x: repeat(x, pattern)))


@pytest.mark.parametrize("pattern", PRODUCTS)
def test_einsum(pattern: str) -> None:
    assert_program(lambda: with_gradients(lambda x: einsum(x, x, pattern)))


def test_pack_unpack_and_shapes() -> None:
    def program() -> Any:
        parts = [torch.randn(2, 3, 5), torch.randn(2, 5), torch.randn(2, 4, 4, 5)]
        packed, shapes = pack(parts, "b * d")
        counts = einops.reduce(packed > 0, "b n d -> b d", "any")
        sizes = einops.parse_shape(packed, "b n _")
        return packed, counts, sizes, list(map(tuple, shapes)), unpack(packed, shapes, "b * d")

    assert_program(program)


@pytest.mark.parametrize(
    "program",
    [
        lambda: rearrange(torch.randn(2, 3), "a (b c) -> a b c", b=2),
        lambda: reduce(torch.arange(6).view(2, 3), "a b -> a", "mean"),
    ],
)
def test_errors_are_those_of_eager(program: Any) -> None:
    with pytest.raises((einops.EinopsError, NotImplementedError)) as expected:
        program()
    with fake_mode(), pytest.raises(expected.type) as found:
        program()
    assert str(found.value) == str(expected.value)


class Attention(nn.Module):
    """Attention between patches, as it is written with einops."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            Reduce("b c (h 2) (w 2) -> b c h w", "max"),
            Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2),
        )
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.qkv = EinMix("b n c -> b n k", weight_shape="c k", bias_shape="k", c=32, k=96)
        self.head = nn.Linear(32, 5)

    def forward(self, images: torch.Tensor) -> Any:
        x = self.patches(images)
        x, _ = pack([repeat(self.token, "1 1 d -> b 1 d", b=len(x)), x], "b * d")
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=4)
        weights = einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
        mixed = einsum(weights, v, "b h i j, b h j d -> b h i d")
        return self.head(reduce(rearrange(mixed, "b h n d -> b n (h d)"), "b n d -> b d", "mean"))


def train() -> Any:
    model = Attention()
    optimizer = torch.optim.AdamW(model.parameters())
    result = model(torch.randn(2, 3, 8, 8))
    nn.functional.cross_entropy(result, torch.randint(5, (2,))).backward()
    optimizer.step()
    return model, optimizer, result


def test_layers_are_trained() -> None:
    assert_program(train)
    with fake_mode(fake_cuda=True), torch.device("cuda"):
        assert train()[2].device == torch.device("cuda:0")
