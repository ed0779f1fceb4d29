"""Each operator that torch autocasts is autocast here: torch's own test lists, on fakes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists
from torch.utils import _pytree as pytree

from tests._tensor.conftest import F16, F32, HALVES, fake_copies, outcome
from torchfake import fake_mode
from torchfake._tensor.autocast.lists import POLICIES
from torchfake._torch import dispatch_keys
from torchfake.errors import UnsupportedOpError


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_every_operator_that_torch_autocasts_has_a_policy(device_type: str) -> None:
    assert set(dispatch_keys.autocast_operators(device_type)) <= POLICIES[device_type].keys()


def entries(lists: Any, name: str) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """One of torch's own test lists, as (operator, arguments, keyword arguments)."""
    for op, *rest in getattr(lists, name):
        arguments = [item for item in rest if isinstance(item, tuple)]
        keywords = next((item for item in rest if isinstance(item, dict)), {})
        if op == "einsum":
            yield op, (rest[0], *(m.reshape(2, 2, 2, 8) for m in rest[1])), {}
            continue
        for args in arguments:
            yield op, args, keywords


def spellings(op: str, args: tuple[Any, ...]) -> Iterator[Callable[..., Any]]:
    """The ways to call an operator by its name: torch.op, torch._C._nn.op, Tensor.op."""
    for place in (torch, torch._C._nn):
        if hasattr(place, op):
            yield getattr(place, op)
    if hasattr(torch.Tensor, op) and isinstance(args[0], torch.Tensor):
        yield getattr(torch.Tensor, op)


CPU_LISTS = [
    name for name in vars(AutocastCPUTestLists("cpu")) if name.startswith(("torch", "nn", "meth"))
]


@HALVES
@pytest.mark.parametrize("name", CPU_LISTS)
def test_torchs_cpu_lists(name: str, half: torch.dtype) -> None:
    for op, args, kwargs in entries(AutocastCPUTestLists("cpu"), name):
        fakes = fake_copies(args)
        for spelling in spellings(op, args):
            with torch.autocast("cpu", dtype=half):
                expected = outcome(lambda s=spelling, a=args, k=kwargs: s(*a, **k))
                result = outcome(lambda s=spelling, a=fakes, k=kwargs: s(*a, **k))
            assert result == expected, op


CUDA_LISTS = {
    "torch_fp16": F16,
    "torch_fp32": F32,
    "torch_need_autocast_promote": F32,
    "nn_fp16": F16,
    "nn_fp32": F32,
    "linalg_fp16": F16,
    "methods_fp16": F16,
    "methods_fp32": F32,
}


NO_META_KERNEL = {"cudnn_convolution", "cudnn_convolution_transpose"}
"""What the CUDA lists have that torch cannot run on meta tensors, autocast or not."""


@pytest.mark.parametrize("name", CUDA_LISTS)
def test_torchs_cuda_lists(name: str) -> None:
    lists = AutocastTestLists("cpu")
    with fake_mode(fake_cuda=True), torch.autocast("cuda"):
        for op, args, kwargs in entries(lists, name):
            fakes = fake_copies(args, "cuda")
            for spelling in spellings(op, args):
                if op in NO_META_KERNEL:
                    with pytest.raises(UnsupportedOpError):
                        spelling(*fakes, **kwargs)
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # some spellings are deprecated
                    result = pytree.tree_leaves(spelling(*fakes, **kwargs))
                assert {t.dtype for t in result} == {CUDA_LISTS[name]}, op
                assert {t.device.type for t in result} == {"cuda"}, op


def test_torchs_cuda_list_of_operators_that_promote() -> None:
    lists = AutocastTestLists("cpu")
    with fake_mode(fake_cuda=True), torch.autocast("cuda"):
        for op, args, dtype in lists.torch_expect_builtin_promote:
            if op != "equal":  # needs values
                assert getattr(torch, op)(*fake_copies(args, "cuda")).dtype == dtype, op


def test_operators_that_cuda_autocast_bans() -> None:
    probability, target = torch.rand(3), torch.rand(3)
    with fake_mode(fake_cuda=True), torch.autocast("cuda"):
        fakes = fake_copies((probability, target), "cuda")
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(*fakes)
        assert F.binary_cross_entropy_with_logits(*fakes).dtype == F32
