"""Lengths, states and weights of recurrent layers on other devices, refused in eager's words; and
results whose sizes depend on values, which are where their arguments are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchfake import deferred_mode, fake_mode

pytestmark = pytest.mark.usefixtures("mode")


@pytest.fixture(params=[fake_mode, deferred_mode])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param(fake_cuda=2):
        yield


LENGTHS = "'lengths' argument should be a 1D CPU int64 tensor, but got "


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lengths_are_on_the_cpu(device: str) -> None:
    x = torch.randn(4, 2, 3, device=device)
    lengths = torch.tensor([4, 2], device="cuda")
    for is_sorted in (True, False):
        with pytest.raises(RuntimeError, match=f"^{LENGTHS}1D cuda:0 Long tensor$"):
            pack_padded_sequence(x, lengths, enforce_sorted=is_sorted)
    with pytest.raises(RuntimeError, match=f"^{LENGTHS}2D cpu Long tensor$"):
        pack_padded_sequence(x, torch.tensor([[4, 2]]))
    packed = pack_padded_sequence(x, torch.tensor([4.0, 2.0]))  # which Python converts
    with pytest.raises(RuntimeError, match=f"^{LENGTHS}1D cuda:0 Long tensor$"):
        torch._VF._pad_packed_sequence(packed.data, packed.batch_sizes.cuda(), False, 0.0, -1)
    assert pad_packed_sequence(packed)[0].device.type == device


ATTRIBUTES = "^Input and {} tensors are not {}, found input tensor {} and {} tensor {}$"


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("here", "there"), [("cpu", "cuda:0"), ("cuda:0", "cpu")])
def test_states_and_weights_are_where_the_input_is(cls: Any, here: str, there: str) -> None:
    def states(device: str, dtype: torch.dtype = torch.float32) -> Any:
        parts = [torch.zeros(1, 2, 5, device=device, dtype=dtype) for _ in range(2)]
        return parts if cls is nn.LSTM else parts[0]

    def match(name: str, kind: str, one: str, other: str) -> str:
        return ATTRIBUTES.format(name, kind, one, name, other)

    x, layer, moved = torch.randn(4, 2, 3, device=here), cls(3, 5).to(here), cls(3, 5).to(there)
    devices = "at the same device", f"at {here}", f"at {there}"
    packed = pack_padded_sequence(x, [4, 2])
    for sequence in (x, packed):
        with pytest.raises(RuntimeError, match=match("hidden", *devices)):
            layer(sequence, states(there))
        with pytest.raises(RuntimeError, match=match("parameter", *devices)):
            moved(sequence, states(here))
    if here != "cpu":
        dtypes = "the same dtype", "with Float", "with Double"
        with pytest.raises(RuntimeError, match=match("hidden", *dtypes)):
            layer(x, states(here, torch.float64))


SELECTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mask": lambda x, mask: x[mask],
    "mask on the CPU": lambda x, mask: x[mask.cpu()],
    "nonzero": lambda x, mask: mask.nonzero(),
    "where": lambda x, mask: torch.where(mask)[0],
    "masked_select": torch.masked_select,
    "unique": lambda x, mask: torch.unique(x),
    "unique_consecutive": lambda x, mask: torch.unique_consecutive(x),
    "repeat_interleave": lambda x, mask: x.repeat_interleave(mask.long()),
    "bincount": lambda x, mask: torch.bincount(mask.long()),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_what_depends_on_values_is_where_its_arguments_are(name: str) -> None:
    x = torch.arange(6.0, device="cuda:1")
    found = SELECTIONS[name](x, x > 2)
    assert found.device == torch.device("cuda:1")
    assert found.cpu().tolist() == SELECTIONS[name](x.cpu(), x.cpu() > 2).tolist()


def test_masks_on_other_devices() -> None:
    x = torch.arange(6.0)
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        x[x.cuda() > 2]
    on_meta = torch.empty(6, device="meta")
    with pytest.raises(NotImplementedError, match="nonzero"):
        on_meta[on_meta > 2]
