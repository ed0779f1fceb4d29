"""Every way to name a device of fake CUDA: factories, conversions, contexts, and two devices."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from tests._patches.conftest import CUDA
from tests.conftest import all_fake
from torchfake import deferred_mode, fake_mode, is_fake
from torchfake.errors import UnsupportedOpError


def in_context(program: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.device("cuda"):
        return program()


FACTORIES: dict[str, Callable[[], torch.Tensor]] = {
    "ones": lambda: torch.ones(3, device="cuda"),
    "index": lambda: torch.ones(3, device=0),
    "device": lambda: torch.zeros(3, device=torch.device("cuda")),
    "named_index": lambda: torch.empty(3, device="cuda:0"),
    "tensor": lambda: torch.tensor([1.0, 2.0], device="cuda"),
    "tensor_of_tensor": lambda: torch.as_tensor(torch.ones(2), device="cuda"),
    "tensor_in_context": lambda: in_context(lambda: torch.as_tensor(torch.ones(2, device="cpu"))),
    "asarray": lambda: torch.asarray([1, 2], device="cuda"),
    "arange": lambda: torch.arange(4, device="cuda"),
    "linspace": lambda: torch.linspace(0, 1, 4, device="cuda"),
    "eye": lambda: torch.eye(4, device="cuda"),
    "full": lambda: torch.full((2,), 3.0, device="cuda"),
    "randn": lambda: torch.randn(2, device="cuda"),
    "randint": lambda: torch.randint(0, 5, (2,), device="cuda"),
    "randperm": lambda: torch.randperm(5, device="cuda"),
    "strided": lambda: torch.empty_strided((2, 3), (1, 2), device="cuda"),
    "tril_indices": lambda: torch.tril_indices(3, 3, device="cuda"),
    "hann": lambda: torch.hann_window(4, device="cuda"),
    "complex": lambda: torch.complex(torch.ones(2), torch.ones(2)).cuda(),
    "like": lambda: torch.ones_like(torch.ones(3), device="cuda"),
    "new": lambda: torch.ones(3).new_zeros(2, device="cuda"),
    "new_tensor": lambda: torch.ones(3).new_tensor([1], device="cuda"),
    "cuda": lambda: torch.ones(3).cuda(),
    "cuda_index": lambda: torch.ones(3).cuda(0),
    "to": lambda: torch.ones(3).to("cuda"),
    "to_index": lambda: torch.ones(3).to(0),
    "to_keyword": lambda: torch.ones(3).to(device="cuda", dtype=torch.float16),
    "to_other": lambda: torch.ones(3).to(torch.ones(1, device="cuda")),
    "type": lambda: torch.ones(3).type("torch.cuda.HalfTensor"),
    "parameter": lambda: nn.Parameter(torch.ones(2, device="cuda")),
    "one_hot": lambda: F.one_hot(torch.arange(3, device="cuda"), 5),
    "cov": lambda: torch.cov(torch.randn(3, 4, device="cuda")),
    "instance_norm": lambda: F.instance_norm(torch.randn(2, 3, 4, 4, device="cuda")),
    "bincount": lambda: torch.nn.functional.pad(torch.ones(2, device="cuda"), (1, 1)),
    "where": lambda: torch.where(torch.ones(2, device="cuda") > 0, 1.0, 0.0),
    "sdpa": lambda: F.scaled_dot_product_attention(*torch.randn(3, 2, 4, 6, 8, device="cuda")),
    "sdpa_causal": lambda: F.scaled_dot_product_attention(
        *torch.randn(3, 2, 4, 6, 8, device="cuda", dtype=torch.float16), is_causal=True
    ),
    "conv": lambda: nn.Conv2d(3, 4, 3, device="cuda")(torch.randn(1, 3, 8, 8, device="cuda")),
    "lstm": lambda: nn.LSTM(3, 4, device="cuda")(torch.randn(5, 1, 3, device="cuda"))[0],
    "cross_entropy": lambda: F.cross_entropy(
        torch.randn(4, 5, device="cuda"), torch.arange(4, device="cuda")
    ),
    "linear": lambda: nn.Linear(3, 4, device="cuda").weight,
    "module_to": lambda: nn.Linear(3, 4).to("cuda").weight,
    "module_cuda": lambda: nn.Linear(3, 4).cuda().weight,
    "module_to_index": lambda: nn.Linear(3, 4).to(0).weight,
    "module_to_empty": lambda: nn.Linear(3, 4, device="meta").to_empty(device="cuda").weight,
}


@pytest.mark.parametrize("fake_cuda", [True, 2, "h100-80gb"])
@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name: str, fake_cuda: Any) -> None:
    """Every way to name CUDA gives a fake on cuda:0."""
    with fake_mode(fake_cuda=fake_cuda):
        made = FACTORIES[name]()
    assert is_fake(made)
    assert made.device == CUDA
    assert (made.is_cuda, made.is_cpu, made.is_meta, made.get_device()) == (True, False, False, 0)
    assert made.untyped_storage().device == CUDA


def test_second_device() -> None:
    """``fake_cuda=2`` has cuda:1, and no cuda:2."""
    with fake_mode(fake_cuda=2):
        there = torch.ones(3).to("cuda:1")
        assert there.device == torch.device("cuda:1")
        assert (there + 1).device == torch.zeros_like(there).device == there.device
        assert nn.Linear(2, 2, device="cuda:1").weight.get_device() == 1
        assert torch.ones(3).cuda(1).cpu().device == torch.device("cpu")
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(3, device="cuda:2")


@pytest.mark.parametrize("index", [None, 0, 1])
def test_device_contexts(index: int | None) -> None:
    """``with torch.device`` entered before the mode, in it, and as the default device."""
    device = torch.device("cuda", index) if index is not None else torch.device("cuda")
    expected = torch.device("cuda", index or 0)

    def made() -> list[torch.Tensor]:
        tensors = [torch.ones(2), torch.tensor([1.0]), torch.arange(3), torch.randn(2)]
        return [*tensors, *nn.Linear(2, 2).parameters(), torch.ones(1) + torch.ones(1)]

    with fake_mode(fake_cuda=2):
        with device:
            inside = made()
        plain = made()
    with device, fake_mode(fake_cuda=2):
        around = made()
    with fake_mode(fake_cuda=2):
        torch.set_default_device(device)
        try:
            default = made()
        finally:
            torch.set_default_device(None)
    assert {t.device for t in (*inside, *around, *default)} == {expected}
    assert {t.device for t in plain} == {torch.device("cpu")}
    assert all_fake([inside, around, default, plain])


def test_explicit_device_wins() -> None:
    """Over a device context, and over the arguments' device."""
    with fake_mode(fake_cuda=2), torch.device("cuda:1"):
        assert torch.ones(2, device="cpu").device.type == "cpu"
        assert torch.ones_like(torch.ones(2), device="cuda:0").device == CUDA
        assert torch.ones_like(torch.ones(2, device="cpu")).device.type == "cpu"


def test_meta_stays_meta() -> None:
    """A factory that names meta gives a plain meta tensor, and so does what is made from it."""
    with fake_mode(fake_cuda=True):
        plain = [torch.ones(2, device="meta"), nn.Linear(2, 2, device="meta").weight]
        plain += [torch.ones(2).to("meta"), torch.zeros_like(torch.ones(2), device="meta")]
        plain += [plain[0] + 1, torch.ones_like(plain[0])]
        with torch.device("meta"):
            plain.append(torch.ones(2))
    for tensor in plain:
        assert not is_fake(tensor)
        assert tensor.is_meta
        assert tensor.device == torch.device("meta")


def test_two_devices() -> None:
    """The error is torch's, with the operator's name; 0-dim CPU tensors go with any device."""
    with fake_mode(fake_cuda=2):
        on_cpu, on_first, on_second = (torch.ones(3, device=d) for d in ("cpu", 0, 1))
        for a, b in ((on_cpu, on_first), (on_first, on_second)):
            text = (
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{a.device} and {b.device}! (when checking the arguments of aten.add.Tensor)"
            )
            with pytest.raises(RuntimeError, match=re.escape(text)):
                a + b
        for op in (torch.mm, torch.cat, F.linear):
            args = (on_cpu[None], on_first[:, None])
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                op(args) if op is torch.cat else op(*args)
        assert (on_first + torch.tensor(2.0)).device == CUDA
        assert (torch.tensor(2.0) * on_second).device == torch.device("cuda:1")
        assert on_first[torch.tensor([0, 1])].device == CUDA
        on_first.copy_(on_cpu)
        assert on_first.device == CUDA


@pytest.mark.parametrize("named", ["torch.cuda.FloatTensor", torch.cuda.HalfTensor])
def test_a_default_type_on_cuda_is_refused_with_what_to_call(named: Any) -> None:
    with fake_mode(fake_cuda=1):
        for given in ({"t": named}, {"t": torch.cuda.BFloat16Tensor}):
            with pytest.raises(UnsupportedOpError, match="set_default_device"):
                torch.set_default_tensor_type(**given)


@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type.* is deprecated")
def test_default_types_on_the_cpu_can_be_set_in_a_mode() -> None:
    with fake_mode(fake_cuda=1):
        try:
            torch.set_default_tensor_type(torch.DoubleTensor)
            assert torch.ones(2).dtype == torch.float64
        finally:
            torch.set_default_tensor_type("torch.FloatTensor")


@pytest.mark.parametrize("mode", [fake_mode, deferred_mode])
def test_tensors_are_grouped_in_the_order_of_eager(mode: Any) -> None:
    """In which the norm of gradients of several dtypes is added up."""
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.complex64]

    def groups(order: Any) -> list[Any]:
        found = _group_tensors_by_device_and_dtype([[torch.ones(1, dtype=d) for d in order]], True)
        return [(dtype, indices) for (_, dtype), (_, indices) in found.items()]

    for order in itertools.permutations(dtypes, 3):
        repeated = (*order, *order[:1])
        expected = groups(repeated)
        with mode():
            assert groups(repeated) == expected
