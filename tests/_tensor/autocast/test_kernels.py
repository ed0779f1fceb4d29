"""autocast on fakes: regions, devices, in-place writes, custom functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests._tensor.conftest import BF16, F16, F32, dtypes
from torchfake import fake_like, fake_mode
from torchfake._torch import dispatch_keys

# Regions.


def matrices() -> tuple[torch.Tensor, torch.Tensor]:
    return fake_like(torch.randn(4, 4)), fake_like(torch.randn(4, 4)).requires_grad_()


def test_regions_inside_regions() -> None:
    x, w = (each.detach() for each in matrices())  # else the first cast would be kept
    found = [(x @ w).dtype]
    with torch.autocast("cpu"):
        found.append((x @ w).dtype)
        with torch.autocast("cpu", dtype=F16):
            found.append((x @ w).dtype)
            with torch.autocast("cpu", enabled=False):
                found.append((x @ w).dtype)
            found.append((x @ w).dtype)
        found.append((x @ w).dtype)
    assert [*found, (x @ w).dtype] == [F32, BF16, F16, F32, F16, BF16, F32]


def test_each_device_has_its_own_autocast() -> None:
    with fake_mode(fake_cuda=True):
        here, there = torch.randn(4, 4), torch.randn(4, 4, device="cuda")
        with torch.autocast("cuda"):
            assert ((here @ here).dtype, (there @ there).dtype) == (F32, F16)
            assert (here.half().exp().dtype, there.half().exp().dtype) == (F16, F32)
            with torch.autocast("cpu"):
                assert ((here @ here).dtype, (there @ there).dtype) == (BF16, F16)
                assert (there * here.sum()).dtype == F32
        with torch.autocast("cpu"):
            assert ((here @ here).dtype, (there @ there).dtype) == (BF16, F32)


def test_cuda_composites_are_autocast_inside() -> None:
    with fake_mode(fake_cuda=True), torch.autocast("cuda"):
        x = torch.randn(3, 4, device="cuda")
        labels = torch.zeros(3, device="cuda", dtype=torch.int64)
        loss = F.cross_entropy(x.half(), labels)  # not listed on cuda: log_softmax, nll_loss are
        assert (loss.dtype, x.half().std().dtype) == (F32, F16)
        assert x.half().softmax(-1, F16).dtype == F16
        assert torch.sum(x.half(), dtype=F16).dtype == F16
        assert torch.sum(x.to(torch.complex64)).dtype == torch.complex64
        assert torch.norm(x.to(torch.complex64)).dtype == F32
        assert torch.matmul(x.double(), x.double().t()).dtype == torch.float64


def test_in_place_and_out_operators_are_not_cast() -> None:
    for build in (lambda m: m, fake_like):
        x, half = build(torch.randn(4, 4)), build(torch.randn(4, 4, dtype=F16))
        with torch.autocast("cpu"):
            assert x.addmm_(x, x).dtype == F32
            assert torch.prod(half, 0).dtype == F32
            assert torch.prod(half, 0, out=torch.empty_like(half[0])).dtype == F16


def test_a_dtype_that_cannot_be_promoted() -> None:
    half, brain = (fake_like(torch.randn(2).to(dtype)) for dtype in (F16, BF16))
    with torch.autocast("cpu"), pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
        torch.cat([half, brain])
    with torch.autocast("cpu"):
        assert torch.cat([half.float(), half, brain, half.double()]).dtype == torch.float64


def test_custom_functions() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, w)
            return x.mm(w)

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, w = ctx.saved_tensors
            seen.append((x.mm(w).dtype, grad.mm(w.t()).dtype))
            return grad.mm(w.t()), x.t().mm(grad)

    class Exact(Product):
        forward = torch.amp.custom_fwd(
            Product.forward.__wrapped__, device_type="cpu", cast_inputs=F32
        )

    seen: list[Any] = []
    for function, dtype in ((Product, BF16), (Exact, F32)):
        for build in (lambda m: m, fake_like):
            x, w = (build(torch.randn(4, 4)).requires_grad_() for _ in range(2))
            with torch.autocast("cpu"):
                result = function.apply(x, w)
            result.sum().backward()
            assert (result.dtype, x.grad.dtype, w.grad.dtype) == (dtype, F32, F32)
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_backward_recomputes_under_the_forwards_autocast(inside: bool, reentrant: bool) -> None:
    found = []
    for build in (lambda m: m, fake_like):
        x, w = (build(torch.randn(4, 4)).requires_grad_() for _ in range(2))
        seen: list[torch.dtype] = []

        def block(x: torch.Tensor, w: Any = w, seen: Any = seen) -> torch.Tensor:
            y = x @ w
            seen.append(y.dtype)
            return y.exp()

        with torch.autocast("cpu"):
            loss = checkpoint(block, x, use_reentrant=reentrant).sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        found.append((loss.dtype, x.grad.dtype, w.grad.dtype, seen))
    assert found[0] == found[1]
    assert found[1][-1] == [BF16, BF16]


@pytest.mark.usefixtures("without_onednn")
def test_in_a_mode_and_after_it() -> None:
    def program() -> Any:
        return nn.GRU(4, 4), torch.randn(3, 2, 4), torch.randn(1, 2, 4)

    def run(model: nn.Module, x: torch.Tensor, state: torch.Tensor) -> Any:
        with torch.autocast("cpu"):
            return dtypes(model(x, state))

    with fake_mode():
        made = program()
        inside = run(*made)
    assert inside == run(*made) == run(*program())


def test_real_tensors_beside_fakes() -> None:
    x, _ = matrices()
    with torch.autocast("cpu"):
        assert torch.mm(x, torch.randn(4, 4)).dtype == BF16
        assert torch.cat([torch.randn(4, 4).bfloat16(), x]).dtype == F32


def test_torch_is_unchanged_outside_a_call() -> None:
    before = torch.ones(2, 2), torch.is_autocast_enabled("ipu")
    x, w = matrices()
    with torch.autocast("cpu"):
        x @ w
        assert not torch.is_autocast_enabled("ipu")
        assert not torch._C._dispatch_tls_is_dispatch_key_included(dispatch_keys.AUTOCAST_KEY.key)
        assert torch.equal(before[0].mm(before[0]), torch.full((2, 2), 2, dtype=BF16))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            x @ fake_like(torch.randn(3, 3))
    assert torch.is_autocast_enabled("ipu") == before[1]
    assert torch.mm(*before[:1] * 2).dtype == F32
