"""What torch's own layers ask of ``__torch_function__``: they take the kernels that eager takes."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchfake import deferred_init, deferred_mode, fake_mode, materialize_tensor
from torchfake._core.schemas import with_repeats
from torchfake._replay import execute
from torchfake.errors import UnsupportedOpError

PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


def encoder(**options: Any) -> nn.Module:
    """Its first layer normalises behind, as the default is, its second before."""
    torch.manual_seed(0)
    result = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, **options
    ).eval()
    result.layers[1].norm_first = True
    return result


def attention() -> nn.Module:
    torch.manual_seed(0)
    return nn.MultiheadAttention(16, 2, batch_first=True).eval()


Program = tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Tensor]]
PROGRAMS: dict[str, Program] = {
    "encoder": (encoder, lambda m, x: m(x)),
    "encoder, causal": (
        encoder,
        lambda m, x: m(x, mask=nn.Transformer.generate_square_subsequent_mask(5)),
    ),
    "attention": (attention, lambda m, x: m(x, x, x, need_weights=False)[0]),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("is_autocast", [False, True])
def test_layers_take_the_fused_kernels_of_eager(name: str, is_autocast: bool) -> None:
    build, call = PROGRAMS[name]
    x = torch.randn(2, 5, 16)
    with torch.no_grad(), torch.autocast("cpu") if is_autocast else nullcontext():
        expected = call(build(), x)
        with deferred_mode():
            inside, deferred = call(build(), x), x.clone()
        module = deferred_init(build)
        after = [call(module, x), call(module, deferred)]
        with fake_mode():
            fake = call(build(), x)
    assert (fake.dtype, fake.stride()) == (expected.dtype, expected.stride())
    for recorded in (inside, *after):
        made = materialize_tensor(recorded)
        assert made.dtype == expected.dtype
        assert torch.equal(made, expected)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")
def test_padded_after_the_mode() -> None:
    module, x = deferred_init(encoder), torch.randn(2, 5, 16)
    with pytest.raises(UnsupportedOpError, match="enable_nested_tensor=False"):
        module(x, src_key_padding_mask=PADDED)
    module = deferred_init(encoder, enable_nested_tensor=False)
    expected = encoder(enable_nested_tensor=False)(x, src_key_padding_mask=PADDED)
    recorded = module(x, src_key_padding_mask=PADDED)
    assert torch.equal(materialize_tensor(recorded), expected)


@torch.no_grad()
def test_attention_is_told_that_its_arguments_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It projects one tensor at once and three apart, which gives other bits on some processors."""
    executed: list[bool] = []

    def watch(func: Any, args: Any, values: Any) -> Any:
        values = with_repeats(func, args, values)
        if func is torch.ops.aten._native_multi_head_attention.default:
            executed.append(values[0] is values[1] is values[2])
        return values

    monkeypatch.setattr(execute, "with_repeats", watch)
    module = deferred_init(attention)
    for x in (torch.randn(2, 5, 16), deferred_init(torch.randn, 2, 5, 16)):
        materialize_tensor(module(x, x, x, need_weights=False)[0])
    assert executed == [True, True]
