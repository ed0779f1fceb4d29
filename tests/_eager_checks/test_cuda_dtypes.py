"""Operators and dtypes that CUDA refuses, and dtypes that it accepts where the CPU does not.

``worker_cuda_dtypes`` compares torch's operator database with torch's own CUDA backend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchfake import deferred_mode, fake_mode
from torchfake._eager_checks.cuda_dtypes import WITHOUT_KERNEL


@pytest.fixture(params=[fake_mode, deferred_mode])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param(fake_cuda=True):
        yield


def matrix(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return torch.ones(*size or (2, 2), device="cuda").to(dtype)


REFUSED: list[tuple[str, torch.dtype, Callable[[torch.Tensor], Any]]] = [
    ('"addmm_cuda" {} \'Long\'', torch.int64, lambda x: x @ x),
    ('"addmm_cuda" {} \'Int\'', torch.int32, lambda x: torch.addmm(x, x, x)),
    ('"addmm_cuda" {} \'Long\'', torch.int64, lambda x: F.linear(x, x)),
    ('"baddbmm_cuda" {} \'Byte\'', torch.uint8, lambda x: x[None] @ x[None]),
    ('"addmv_impl_cuda" {} \'Long\'', torch.int64, lambda x: x @ x[0]),
    ('"dot" {} \'Long\'', torch.int64, lambda x: x[0] @ x[0]),
    ('{} \'Bool\'', torch.bool, lambda x: x @ x),
    ('{} \'Long\'', torch.int64, F.gelu),
    ('{} \'ComplexFloat\'', torch.complex64, torch.erf),
    ('{} \'Half\'', torch.float16, torch.linalg.cholesky),
    ('{} \'Float\'', torch.float32, lambda x: x & x),
    ('{} \'Long\'', torch.int64, lambda x: x.normal_()),
    ("not supported for complex", torch.complex64, lambda x: x.clamp(0)),
]  # fmt: skip


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("text", "dtype", "run"), REFUSED)
def test_dtypes_that_cuda_refuses(text: str, dtype: torch.dtype, run: Any) -> None:
    x = matrix(dtype)
    with pytest.raises((NotImplementedError, RuntimeError)) as caught:
        run(x)
    assert text.format("not implemented for") in str(caught.value)
    assert "cpu" not in str(caught.value).lower()


HALF = torch.float16
MIXED: dict[str, Callable[[torch.Tensor], Any]] = {
    "result type ComplexFloat can't be cast": lambda x: x.add_(1j),
    "value cannot be converted to type float": lambda x: x.__setitem__(0, 1j),
    "masked_fill_ only supports boolean masks": lambda x: x.masked_fill(x.long(), 0),
    "Index put requires the source and destination dtypes match": lambda x: x.index_put_(
        (torch.zeros(2, dtype=torch.int64, device="cuda"),), x.to(HALF)
    ),
    "self and source expected to have the same dtype": lambda x: x.put_(x.long(), x.to(HALF)),
    "expected m1 and m2 to have the same dtype": lambda x: x @ x.to(HALF),
    "Found dtype Half but expected Float": lambda x: F.binary_cross_entropy(x, x.to(HALF)),
    "expected scalar type Float but found Half": lambda x: F.conv1d(x[None], x[None].to(HALF)),
}


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("text", MIXED)
def test_dtypes_that_code_for_all_devices_compares(text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        MIXED[text](matrix(torch.float32))


@pytest.mark.usefixtures("mode")
def test_norms_whose_weights_have_another_dtype() -> None:
    """The CPU takes float32 weights for an input in half precision, CUDA does not."""
    half, wide = matrix(HALF, 2, 4, 4), matrix(torch.float32, 4)
    for run in (lambda: F.layer_norm(half, (4,), wide, wide), lambda: F.group_norm(half, 2, wide)):
        with pytest.raises(RuntimeError, match="expected scalar type Half but found Float"):
            run()
        with torch.autocast("cuda"):
            run()  # in float32, the input too


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_dtypes_that_cuda_saves_for_backward(dtype: torch.dtype) -> None:
    x = matrix(dtype, 2, 3, 4).requires_grad_()
    F.layer_norm(x, (4,), x[0, 0], x[0, 0]).sum().backward()
    F.instance_norm(x, weight=x[0, :, 0]).sum().backward()
    F.batch_norm(x, None, None, torch.ones(3, device="cuda"), training=True).sum().backward()
    F.group_norm(x, 1).sum().backward()


ACCEPTED: list[tuple[torch.dtype, Callable[[torch.Tensor], Any]]] = [
    (torch.bool, torch.abs),
    (torch.bool, torch.trace),
    (torch.bool, torch.median),
    (torch.int64, lambda x: torch.histc(x, 4, 0, 3)),
    (torch.int64, lambda x: x[:0] @ x),
    (torch.float16, lambda x: x @ x),
    (torch.float16, torch.linalg.vector_norm),
    (torch.complex64, lambda x: x.nansum()),
    (torch.int32, lambda x: F.embedding(x, matrix(torch.float32, 3, 4))),
]


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("dtype", "run"), ACCEPTED)
def test_dtypes_that_cuda_accepts(dtype: torch.dtype, run: Any) -> None:
    run(matrix(dtype))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("name", ["histogram.bin_ct", "_histogramdd_bin_edges", "to_mkldnn"])
def test_operators_that_cuda_does_not_have(name: str) -> None:
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "histogram.bin_ct": lambda x: torch.histogram(x, 5),
        "_histogramdd_bin_edges": lambda x: torch.histogramdd(x, [2, 2]),
        "to_mkldnn": lambda x: x.to_mkldnn(),
    }
    with pytest.raises(NotImplementedError, match=f"Could not run 'aten::{name}' .* 'CUDA'"):
        calls[name](torch.ones(2, 2, device="cuda"))


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="a torch without CUDA has no kernel")
def test_the_operators_without_a_kernel_are_those_of_torch() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composites = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
    structured = "CompositeExplicitAutogradNonFunctional"  # calls ``out=`` of the device
    names: Any = torch._C._dispatch_get_all_op_names()
    lacking = {
        name.split(".")[0]
        for name in names
        if name.startswith("aten::") and has(name, "CPU") and not has(name, "CUDA")
        if not any(has(name, key) for key in (*composites, structured))
    }
    of_any_device = {"aten::narrow_copy", "aten::quantize_per_tensor"}  # other overloads have one
    asked = {name for name in lacking if not re.search("test_|_empty_|foobar|assert|dep_to", name)}
    assert asked - of_any_device - {"aten::from_file"} == WITHOUT_KERNEL


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gelss"])
def test_drivers_of_the_cpu(driver: str) -> None:
    a = torch.eye(3, device="cuda")
    torch.linalg.lstsq(a, a, driver="gels")
    with pytest.raises(RuntimeError, match="other than `gels` is not supported on CUDA"):
        torch.linalg.lstsq(a, a, driver=driver)
