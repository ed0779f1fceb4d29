"""Wrapper subclasses on fake CUDA: trained, moved and written without a GPU, and left as they are
everywhere else.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.quantized_tensor import Quantized
from torchfake import fake_mode


class Moved(Quantized):
    """Handles what moves and writes it by doing that with what is inside."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            to = {"device": kwargs["device"], "non_blocking": False}
            return cls(args[0].codes.to(**to), args[0].scale.to(to["device"]), args[0].dtype)
        if func is torch.ops.aten.copy_.default:
            codes = Quantized.of(args[1])
            args[0].codes.copy_(codes.codes)
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


def on_cuda() -> Any:
    return Moved.of(torch.ones(3, 4, device="cuda"))


def test_a_trainable_wrapper_does_not_abort_the_process() -> None:
    with fake_mode(fake_cuda=True):
        layer = nn.Linear(4, 3, device="cuda")
        layer.weight = nn.Parameter(on_cuda())
        x = torch.ones(2, 4, device="cuda", requires_grad=True)
        layer(x).sum().backward()
    assert x.grad is not None
    assert x.grad.device == layer.weight.device == torch.device("cuda:0")


@pytest.mark.parametrize(
    "move",
    [
        lambda w: w.to("cuda"),
        lambda w: w.to(0),
        lambda w: w.to(device="cuda:0"),
        lambda w: w.to(torch.ones(1, device="cuda")),
        lambda w: w.cuda(),
        lambda w: w.cuda(0),
        lambda w: nn.ParameterList([w]).cuda()[0],
        lambda w: nn.ParameterList([w]).to("cuda")[0],
    ],
)
def test_moves_there_and_back(move: Any) -> None:
    with fake_mode(fake_cuda=True):
        wrapper = Moved.of(torch.ones(3, 4))
        moved = move(wrapper)
        assert moved.device == moved.codes.device == moved.scale.device == torch.device("cuda:0")
        assert moved.is_cuda
        assert not moved.is_meta
        assert moved.get_device() == 0
        for back in (moved.cpu(), moved.to("cpu"), moved.to(torch.ones(1))):
            assert back.device == back.codes.device == torch.device("cpu")
            assert back.get_device() == -1


def test_is_written_in_place() -> None:
    with fake_mode(fake_cuda=True):
        wrapper = on_cuda()
        assert wrapper.copy_(torch.ones(3, 4, device="cuda")) is wrapper


def test_real_wrappers_answer_as_before() -> None:
    wrapper = Moved.of(torch.ones(3, 4))
    assert (wrapper.device, wrapper.is_cuda, wrapper.is_meta) == (torch.device("cpu"), False, False)
    assert wrapper.get_device() == -1
    assert wrapper.cpu() is wrapper
    assert wrapper.to("cpu") is wrapper
    meta = wrapper.to("meta")
    assert meta.is_meta
    assert meta.device.type == "meta"


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_a_fake_moves_where_c_plus_plus_does_not_decompose(context: Any) -> None:
    """In inference mode ``to`` arrives in one piece, as it does inside the class of a wrapper."""
    with fake_mode(fake_cuda=True), context():
        x = torch.ones(3)
        assert x.to("cuda").device == x.to(torch.ones(2, device="cuda")).device
        assert x.to("cuda").is_cuda
        assert x.to("cuda", torch.float16).is_cuda
        assert x.to("cpu") is x
        assert x.to(torch.float64).dtype == torch.float64
